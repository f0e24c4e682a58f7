//! Work in progress.
use std::ffi::OsString;
use std::process::ExitCode;
/// Being built.
pub fn main(_: Vec<OsString>) -> ExitCode {
    ExitCode::FAILURE
}
