//! The name of this process for operators.

/// Host and process, which logs and `archipelago cluster status` show.
pub(crate) fn process_address() -> String {
    let host = rustix::system::uname().nodename().to_string_lossy().into_owned();
    format!("{host} (process {})", std::process::id())
}
