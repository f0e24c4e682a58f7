//! What a server tells the person who started it. It may run on long after whoever read that has
//! gone (`serve | head -1`, a supervisor that ended), so nobody reading is no failure: `println!`
//! would end the process, in the middle of an orderly stop.

use std::fmt::Arguments;
use std::io::Write;

/// A line on standard output, if anybody reads it.
macro_rules! say {
    ($($line:tt)*) => { $crate::console::line(format_args!($($line)*)) };
}

pub(crate) use say;

/// See [`say`].
pub(crate) fn line(line: Arguments<'_>) {
    let mut out = std::io::stdout().lock();
    let _nobody_reads = writeln!(out, "{line}").and_then(|()| out.flush());
}
