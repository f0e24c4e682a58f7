//! Seeds, one run each: the command line that all checks of this kind share, and who is named when
//! a run panics.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::process::ExitCode;

use archipelago_memory::core::Sabotage;
use parking_lot::Mutex;

/// The flags that leave a step of the pool's protocol out.
pub const POOL_FLAGS: &str = "[--no-fencing] [--no-fill] [--no-eviction]";

/// Which seeds are run, and how.
#[derive(Clone, Copy, Debug)]
pub struct Seeds {
    /// The first.
    pub from: u64,
    /// How many.
    pub seeds: u64,
    /// Prints what happens in each run.
    pub trace: bool,
    /// Steps of the pool's protocol that are left out.
    pub sabotage: Sabotage,
}

impl Seeds {
    /// Reads the program's words; `other` takes those that are the program's own, and says whether
    /// it did. Where nothing is to be run, it prints why, or the usage if that was asked for, and
    /// gives how the program ends.
    pub fn asked(usage: &str, other: impl FnMut(&str) -> bool) -> Result<Self, ExitCode> {
        match Self::from_words(std::env::args().skip(1), other) {
            Ok(Some(seeds)) => Ok(seeds),
            Ok(None) => {
                println!("{usage}");
                Err(ExitCode::SUCCESS)
            }
            Err(wrong) => {
                eprintln!("{wrong}\n{usage}");
                Err(ExitCode::FAILURE)
            }
        }
    }

    /// `None`: the usage was asked for.
    fn from_words(
        words: impl IntoIterator<Item = String>,
        mut other: impl FnMut(&str) -> bool,
    ) -> Result<Option<Self>, String> {
        let mut parsed = Self { from: 0, seeds: 1000, trace: false, sabotage: Sabotage::default() };
        let mut words = words.into_iter();
        while let Some(word) = words.next() {
            let mut number = || {
                let text = words.next().ok_or(format!("{word}: a number is missing"))?;
                text.parse::<u64>().map_err(|_| format!("{word}: `{text}` is not a number"))
            };
            match word.as_str() {
                "--seeds" => parsed.seeds = number()?,
                "--from" => parsed.from = number()?,
                "--trace" => parsed.trace = true,
                "--no-fencing" => parsed.sabotage.no_fencing = true,
                "--no-fill" => parsed.sabotage.no_fill = true,
                "--no-eviction" => parsed.sabotage.no_eviction = true,
                "--help" | "-h" => return Ok(None),
                own if other(own) => {}
                unknown => return Err(format!("unknown argument `{unknown}`")),
            }
        }
        Ok(Some(parsed))
    }

    /// Runs each seed and prints its notes, what must not be, and the command that repeats it; also
    /// of a run that panics, which ends the program at once in release builds. `run` gives notes
    /// and violations. How many failed.
    pub fn run(
        &self,
        replay: impl Fn(u64) -> String,
        mut run: impl FnMut(u64) -> (Vec<String>, Vec<String>),
    ) -> u64 {
        let before = std::panic::take_hook();
        std::panic::set_hook(Box::new(move |info| {
            before(info);
            if let Some((seed, replay)) = RUNNING.lock().as_ref() {
                eprintln!("seed {seed} panicked\n    repeat: {replay}");
            }
        }));
        let mut failed = 0;
        for seed in self.from..self.from + self.seeds {
            *RUNNING.lock() = Some((seed, replay(seed)));
            let (notes, violations) = run(seed);
            *RUNNING.lock() = None;
            for note in notes {
                println!("{note}");
            }
            if !violations.is_empty() {
                failed += 1;
                println!("seed {seed}: {}", violations.join("\n    "));
                println!("    repeat: {}", replay(seed));
            }
        }
        failed
    }
}

/// The seed that runs now and how to repeat it, for a panic that ends the program.
static RUNNING: Mutex<Option<(u64, String)>> = Mutex::new(None);

/// The words that leave steps of the pool's protocol out, each behind a space.
#[must_use]
pub fn words_of(sabotage: Sabotage) -> String {
    let flag = |left_out, flag| if left_out { flag } else { "" };
    format!(
        "{}{}{}",
        flag(sabotage.no_fencing, " --no-fencing"),
        flag(sabotage.no_fill, " --no-fill"),
        flag(sabotage.no_eviction, " --no-eviction")
    )
}

/// What `body` gives for a seed; should it panic, this does with the seed and the command that
/// repeats it.
pub fn named<T>(seed: u64, replay: impl FnOnce() -> String, body: impl FnOnce() -> T) -> T {
    catch_unwind(AssertUnwindSafe(body)).unwrap_or_else(|cause| {
        let text = cause.downcast_ref::<String>().cloned();
        let text = text.or_else(|| cause.downcast_ref::<&str>().map(ToString::to_string));
        let text = text.unwrap_or_else(|| "a panic without words".into());
        panic!("seed {seed} panicked: {text}\nrepeat: {}", replay())
    })
}
