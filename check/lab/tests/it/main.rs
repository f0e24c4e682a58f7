//! The laboratory from end to end, small, through the library's entry, as the program calls it.

mod comparisons;
mod flexkv;
mod keigo;
mod o3;
mod pages;
mod rocksdb;
mod scripts;
mod terark_engine;
mod terark_nodes;
mod verbs;
