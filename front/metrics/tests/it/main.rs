//! Tests of the pages, the dashboard and the alerts, and of figures of real components.

#![allow(clippy::unwrap_used, reason = "a test that cannot go on fails")]

mod database;
mod files;
