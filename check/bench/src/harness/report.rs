//! Standard output, to the letter as db_bench 7.8 prints it.

use std::io::Write as _;

use crate::harness::flags::Flags;
use crate::harness::tally::Total;

const MIB: f64 = 1_048_576.0;

/// Prints `text` and a line end. A closed pipe is no error.
pub fn say(text: &str) {
    let mut out = std::io::stdout().lock();
    let _ = out.write_all(text.as_bytes()).and_then(|()| out.write_all(b"\n"));
}

/// The block at the start of a run.
pub fn header(flags: &Flags) -> String {
    let load = &flags.load;
    let (key, value, num) = (load.key_size, load.value_size, load.num as f64);
    let compressed = value as f64 * load.compression_ratio;
    let raw_mib = (key + value) as f64 * num / MIB;
    let file_mib = (key as f64 + compressed) * num / MIB;
    let mut text = format!(
        "Keys:       {key} bytes each (+ 0 bytes user-defined timestamp)\n\
         Values:     {value} bytes each ({} bytes after compression)\n\
         Entries:    {}\n\
         Prefix:    {} bytes\n\
         Keys per prefix:    {}\n\
         RawSize:    {raw_mib:.1} MB (estimated)\n\
         FileSize:   {file_mib:.1} MB (estimated)\n\
         Write rate: {} bytes/second\n\
         Read rate: {} ops/second\n\
         Compression: {}\n",
        (compressed + 0.5) as u64,
        load.num,
        load.prefix_size,
        load.keys_per_prefix,
        load.benchmark_write_rate_limit,
        load.benchmark_read_rate_limit,
        flags.storage.compression_type.header_name(),
    );
    if cfg!(debug_assertions) {
        text += "WARNING: Assertions are enabled; benchmarks unnecessarily slow\n";
    }
    text + "------------------------------------------------"
}

/// The line of a benchmark. `message` may end in a line end: some of db_bench's do.
pub fn result_line(name: &str, total: &Total, message: &str) -> String {
    let mut line = format!(
        "{name:<12} : {:11.3} micros/op {} ops/sec {:.3} seconds {} operations;",
        total.micros_per_op(),
        total.ops_per_second() as u64,
        total.seconds(),
        total.ops(),
    );
    if total.bytes > 0 {
        line += &format!(" {:6.1} MB/s", total.mb_per_second());
    }
    if !message.is_empty() {
        line.push(' ');
        line += message;
    }
    line
}

/// The distributions of a benchmark.
pub(crate) fn histograms(total: &Total) -> String {
    let mut text = String::new();
    for (kind, histogram) in total.histograms() {
        text += &format!("Microseconds per {}:\n{}\n", kind.name(), histogram.text());
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::harness::flags::tests::flags;

    #[test]
    fn the_result_line_is_db_bench_s_to_the_letter() {
        // A million operations of 116 bytes in 6.956 seconds.
        let total = Total::of(1_000_000, 116_000_000, 6_955_600_000);
        assert_eq!(
            result_line("fillrandom", &total, ""),
            "fillrandom   :       6.956 micros/op 143769 ops/sec 6.956 seconds 1000000 operations;\
             \u{20}  15.9 MB/s"
        );
        // Printed by db_bench 7.8.3.
        let total = Total::of(2000, 0, 3_286_000);
        assert_eq!(
            result_line("readmissing", &total, "(0 of 2000 found)\n"),
            "readmissing  :       1.643 micros/op 608642 ops/sec 0.003 seconds 2000 operations; \
             (0 of 2000 found)\n"
        );
        let total = Total::of(0, 0, 44_165_000);
        assert_eq!(
            result_line("compact", &total, ""),
            "compact      :   44165.000 micros/op 22 ops/sec 0.044 seconds 1 operations;"
        );
        let total = Total::of(2000, 1, 4_500_000);
        assert_eq!(
            result_line("multireadrandom", &total, "(1 of 2000 found)"),
            "multireadrandom :       2.250 micros/op 444444 ops/sec 0.004 seconds 2000 operations;\
             \u{20}   0.0 MB/s (1 of 2000 found)"
        );
    }

    #[test]
    fn the_header_is_db_bench_s() {
        let text = header(&flags(&["--num=3000", "--compression_type=none"]));
        for line in [
            "Keys:       16 bytes each (+ 0 bytes user-defined timestamp)",
            "Values:     100 bytes each (50 bytes after compression)",
            "Entries:    3000",
            "RawSize:    0.3 MB (estimated)",
            "FileSize:   0.2 MB (estimated)",
            "Compression: NoCompression",
        ] {
            assert!(text.lines().any(|found| found == line), "{line}\n{text}");
        }
    }
}
