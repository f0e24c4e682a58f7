//! Tests of the pages, the dashboard and the alerts, and of figures of real components.

mod database;
mod files;
