//! A database on two devices as operators run it: profiled, served, killed, inspected, and with a
//! missing device.

use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};
use std::time::Duration;

use archipelago::Rng;
use archipelago::env::local::LocalFs;
use archipelago::env::{FileSystem, IoContext, IoPurpose};
use archipelago::tier::scheme::Scheme;
use archipelago_base::clock::{Clock, SystemClock};

use crate::cluster::{Process, until};
use crate::store::Redis;
use crate::{archipelago, db, error_text, full_output, text};

/// Number of keys, of a kilobyte each.
const KEYS: u64 = 2000;

/// A directory for all files of a test, with a settings file of two devices.
struct TestDir {
    base: tempfile::TempDir,
}

impl TestDir {
    fn new() -> Self {
        let place = Self { base: tempfile::tempdir().unwrap() };
        // Small sizes make levels from few records. The first device has less space than they need.
        let settings = format!(
            "[database]\nwal_segment_bytes = 131_072\n\
             [families.default]\nwrite_buffer_bytes = 16_384\nlevel_base_bytes = 65_536\n\
             level_multiplier = 4\ntarget_file_bytes = 32_768\n\
             [[tiers]]\nname = \"quick\"\npath = \"{}\"\ncreate = true\n\
             capacity_bytes = 600_000\n\
             [[tiers]]\nname = \"roomy\"\npath = \"{}\"\ncreate = true\n",
            place.of("quick-dir").display(),
            place.of("roomy-dir").display()
        );
        write(&place.of("settings.toml"), &settings);
        place
    }

    fn of(&self, name: &str) -> PathBuf {
        self.base.path().join(name)
    }

    /// The shortest possible `archipelago tier profile`.
    fn profile_command(&self, args: &[&str]) -> Command {
        let mut command = archipelago();
        command
            .args(["tier", "profile", "--tool", "own", "--point-ms", "5", "--threads-max", "2"])
            .arg("--dir")
            .arg(self.of("data"))
            .args(args);
        command
    }

    /// Runs the shortest possible `archipelago tier profile`.
    fn profile(&self, args: &[&str]) -> Output {
        self.profile_command(args).output().unwrap()
    }

    /// The scheme on the device with the namespace.
    fn scheme(&self) -> Scheme {
        Scheme::from_toml(&read(&self.of("quick-dir/scheme.toml"))).unwrap()
    }

    /// A server and a client of it.
    fn serve(&self) -> (Process, Redis) {
        let mut process = Process::start(
            archipelago()
                .args(["serve", "--listen", "127.0.0.1:0", "--config"])
                .arg(self.of("settings.toml"))
                .arg("--dir")
                .arg(self.of("data")),
        );
        let said = process.line();
        let client = Redis::connect(said.rsplit(' ').next().unwrap()).unwrap();
        (process, client)
    }

    /// The error of a server that cannot start.
    fn refused(&self) -> String {
        let output = archipelago()
            .args(["serve", "--listen", "127.0.0.1:0", "--config"])
            .arg(self.of("settings.toml"))
            .arg("--dir")
            .arg(self.of("data"))
            .output()
            .unwrap();
        error_text(&output)
    }

    #[expect(clippy::disallowed_methods, reason = "an operator's hand")]
    fn rename(&self, from: &str, to: &str) {
        std::fs::rename(self.of(from), self.of(to)).unwrap();
    }
}

fn context() -> IoContext {
    IoContext::manifest(IoPurpose::ForegroundWrite)
}

fn read(path: &Path) -> String {
    String::from_utf8(LocalFs::new().read(path, context()).unwrap()).unwrap()
}

fn write(path: &Path, text: &str) {
    LocalFs::new().write_atomic(path, text.as_bytes(), context()).unwrap();
}

fn exists(path: &Path) -> bool {
    LocalFs::new().exists(path).unwrap()
}

/// Bytes that do not compress.
fn value(key: u64) -> String {
    let mut rng = Rng::with_seed(key);
    (0..1000).map(|_| rng.alphanumeric()).collect()
}

fn set_all(client: &mut Redis) {
    for key in 0..KEYS {
        let answer = client.ask_long(&["SET", &format!("reef:{key}"), &value(key)]).unwrap();
        assert_eq!(answer, "+OK");
    }
}

fn check_all(client: &mut Redis) {
    for key in 0..KEYS {
        let answer = client.ask_long(&["GET", &format!("reef:{key}")]).unwrap();
        assert!(answer == value(key), "reef:{key} is {answer}");
    }
}

/// The rest of the line of INFO that begins with this text.
fn info(client: &mut Redis, name: &str) -> String {
    let all = client.ask_long(&["INFO"]).unwrap();
    let line = all.lines().find_map(|line| line.strip_prefix(name));
    line.unwrap_or_else(|| panic!("no {name} in {all}")).to_owned()
}

/// A figure of a device in INFO.
fn figure(client: &mut Redis, device: &str, name: &str) -> u64 {
    let line = info(client, device);
    let field = line.split(',').find_map(|field| field.strip_prefix(name)?.strip_prefix('='));
    field.unwrap_or_else(|| panic!("no {name} in {line}")).parse().unwrap()
}

/// Waits until levels lie on the second device as well.
fn until_on_both(client: &mut Redis) {
    until("tables on the second device", || figure(client, "tier1:", "files") > 0);
}

/// The lines of `db tiers` about a device.
fn part_of(shown: &str, device: &str, dir: &Path) -> String {
    let head = format!("{device} ({}, directory): ", dir.display());
    let mut lines = shown.lines().skip_while(|line| !line.starts_with(&head));
    assert!(lines.next().is_some(), "no {device} in {shown}");
    lines.take_while(|line| line.starts_with("  ")).map(|line| format!("{line}\n")).collect()
}

#[test]
fn two_devices_are_profiled_served_killed_and_shown() {
    let place = TestDir::new();
    let settings = place.of("settings.toml");
    let said = text(&place.profile(&[
        "--config",
        settings.to_str().unwrap(),
        "--load-seconds",
        "1",
        "--load-threads",
        "2",
        "--load-jobs",
        "2",
    ]));
    let expected = [
        "quick: measuring with the built-in probe",
        "quick: write, 1 threads: ",
        "roomy: read, 1 threads: ",
        "roomy: fastest with ",
        "writers on average: log ",
        "log and L0 to ",
    ];
    assert!(expected.iter().all(|words| said.contains(words)), "{said}");
    let written = place.of("quick-dir/scheme.toml");
    assert!(said.ends_with(&format!("written to {}\n", written.display())), "{said}");
    let left: Vec<_> = ["quick-dir", "roomy-dir"]
        .into_iter()
        .flat_map(|dir| LocalFs::new().list(&place.of(dir)).unwrap())
        .map(|entry| entry.name)
        .filter(|name| name != "LOCK")
        .collect();
    assert_eq!(left, ["scheme.toml"], "nothing else stays of a profile");
    assert!(!exists(&place.of("data")));
    let mut scheme = place.scheme();
    let names: Vec<_> = scheme.devices.iter().map(|device| device.name.as_str()).collect();
    assert_eq!(names, ["quick", "roomy"]);
    for device in &scheme.devices {
        let points = device.writes.iter().chain(&device.reads);
        assert!(points.clone().count() >= 2 && points.clone().all(|p| p.bytes_per_s > 0.0));
    }
    assert!(scheme.fast_levels >= 2 && scheme.log_writers > 0.0, "{scheme:?}");

    // The first lines of the file say that a person may change it.
    (scheme.fast_levels, scheme.devices[0].writers_max, scheme.devices[1].writers_max) = (2, 3, 5);
    write(&written, &scheme.to_toml().unwrap());
    let (mut server, mut client) = place.serve();
    assert_eq!(info(&mut client, "tier_fast_levels:"), "2");
    for (device, name, limit) in [("tier0:", "quick", 3), ("tier1:", "roomy", 5)] {
        let line = info(&mut client, device);
        assert!(line.starts_with(&format!("name={name},kind=directory,")), "{line}");
        assert_eq!(figure(&mut client, device, "limit"), limit, "{line}");
    }
    set_all(&mut client);
    until_on_both(&mut client);
    check_all(&mut client);
    server.kill();
    let (mut server, mut client) = place.serve();
    assert_eq!(figure(&mut client, "tier0:", "limit"), 3, "it is read at every start");
    check_all(&mut client);
    assert!(server.end().ends_with("Stopped\n"));

    let shown = text(&db(&place.of("data"), &["tiers"]));
    let quick = part_of(&shown, "quick", &place.of("quick-dir"));
    assert!(quick.contains("  bookkeeping: ") && quick.contains(" files, "), "{shown}");
    let roomy = part_of(&shown, "roomy", &place.of("roomy-dir"));
    assert!(roomy.lines().any(|line| line.starts_with("  L")), "{shown}");
    assert!(text(&db(&place.of("data"), &["stats"])).contains("roomy ("));
}

#[test]
fn profile_finds_devices_by_the_directory_and_obeys_out() {
    let place = TestDir::new();
    let out = place.of("elsewhere.toml");
    let args = ["--load-seconds", "0", "--out", out.to_str().unwrap()];
    let refused = error_text(&place.profile(&args));
    assert!(refused.contains("does not lie on tiers") && refused.contains("--config"), "{refused}");
    let (mut server, mut client) = place.serve();
    assert_eq!(client.ask_long(&["SET", "reef", "coral"]).unwrap(), "+OK");
    let refused = error_text(&place.profile(&args));
    assert!(refused.contains("quick") && refused.contains("LOCK"), "in use: {refused}");
    server.end();
    text(&place.profile(&args));
    let scheme = Scheme::from_toml(&read(&out)).unwrap();
    assert_eq!(scheme.devices.len(), 2, "{scheme:?}");
    assert!(!exists(&place.of("quick-dir/scheme.toml")));
    assert_eq!(text(&db(&place.of("data"), &["get", "reef"])), "coral\n");
    // A scheme that cannot be read, or of another version, is refused with its name.
    for wrong in ["fast_levels = many\n", "version = 7\nfast_levels = 2\n"] {
        write(&place.of("quick-dir/scheme.toml"), wrong);
        let refused = place.refused();
        assert!(refused.contains("quick-dir/scheme.toml"), "{refused}");
    }
}

#[test]
fn scheme_is_written_if_the_profile_cannot_be_printed() {
    let place = TestDir::new();
    let settings = place.of("settings.toml");
    let args = ["--load-seconds", "0", "--config", settings.to_str().unwrap()];
    let output = place.profile_command(&args).stdout(full_output()).output().unwrap();
    let refused = error_text(&output);
    assert_eq!(output.status.code(), Some(1), "{refused}");
    assert!(refused.contains("cannot write to standard output"), "{refused}");
    assert_eq!(place.scheme().devices.len(), 2);
}

#[test]
fn missing_device_is_named_and_nothing_changes() {
    let place = TestDir::new();
    let (mut server, mut client) = place.serve();
    client.ask_long(&["SET", "small", "coral"]).unwrap();
    set_all(&mut client);
    until_on_both(&mut client);
    server.end();
    for (device, dir) in [("roomy", "roomy-dir"), ("quick", "quick-dir")] {
        place.rename(dir, "away");
        let tool = error_text(&db(&place.of("data"), &["get", "small"]));
        for refused in [place.refused(), tool] {
            let named = format!("the device \"{device}\" (last at {})", place.of(dir).display());
            assert!(refused.contains(&named) && refused.contains("is missing"), "{refused}");
            assert!(refused.contains("nothing was changed"), "{refused}");
        }
        let profile = error_text(&place.profile(&["--load-seconds", "0"]));
        assert!(profile.contains(&format!("the device \"{device}\"")), "{profile}");
        assert!(!exists(&place.of(dir)), "{dir} was not made anew");
        place.rename("away", dir);
    }
    // Both devices are missing, as without a mount. No new database may take their place.
    let both = [("roomy-dir", "away-1"), ("quick-dir", "away-2")];
    both.iter().for_each(|(dir, away)| place.rename(dir, away));
    let settings = place.of("settings.toml");
    let profile = place.profile(&["--load-seconds", "0", "--config", settings.to_str().unwrap()]);
    let tool = db(&place.of("data"), &["get", "small"]);
    for refused in [place.refused(), error_text(&tool), error_text(&profile)] {
        assert!(
            refused.contains("all devices are missing") && refused.contains("mounted"),
            "{refused}"
        );
    }
    for (dir, away) in both {
        assert!(!exists(&place.of(dir)), "{dir} was not made anew");
        place.rename(away, dir);
    }
    let (_server, mut client) = place.serve();
    assert_eq!(client.ask_long(&["GET", "small"]).unwrap(), "coral");
    check_all(&mut client);
}

/// A database with tables on both devices, and its server.
fn filled() -> (TestDir, Process) {
    let place = TestDir::new();
    let (server, mut client) = place.serve();
    set_all(&mut client);
    until_on_both(&mut client);
    (place, server)
}

/// Runs `archipelago tier remove`.
fn remove(place: &TestDir, name: &str) -> Output {
    archipelago().args(["tier", "remove", name, "--dir"]).arg(place.of("data")).output().unwrap()
}

#[test]
fn database_works_without_a_removed_device() {
    let (place, mut server) = filled();
    let refused = error_text(&remove(&place, "quick"));
    assert!(refused.contains("LOCK"), "it is served: {refused}");
    server.kill();
    let refused = error_text(&remove(&place, "brisk"));
    assert!(refused.contains("\"brisk\"") && refused.contains("\"quick\""), "{refused}");
    // This device has the namespace and the log. The part of the log that was not drained when the
    // server was killed moves as well.
    let said = text(&remove(&place, "quick"));
    assert!(
        said.contains("quick is removed from the tiers") && said.contains("quick-dir"),
        "{said}"
    );
    assert!(!exists(&place.of("quick-dir/DEVICE")) && !exists(&place.of("quick-dir/files")));
    let shown = text(&db(&place.of("data"), &["tiers"]));
    assert!(shown.contains("roomy (") && !shown.contains("quick ("), "{shown}");
    let refused = error_text(&remove(&place, "roomy"));
    assert!(refused.contains("the only one"), "{refused}");
    let settings = read(&place.of("settings.toml"));
    let (start, end) = (settings.find("[[tiers]]").unwrap(), settings.rfind("[[tiers]]").unwrap());
    write(&place.of("settings.toml"), &format!("{}{}", &settings[..start], &settings[end..]));
    let (mut server, mut client) = place.serve();
    check_all(&mut client);
    server.end();
    // A new drive takes its place.
    write(&place.of("settings.toml"), &settings);
    let (mut server, mut client) = place.serve();
    check_all(&mut client);
    set_all(&mut client);
    until_on_both(&mut client);
    server.end();
}

#[test]
fn killed_removal_loses_nothing_and_is_finished_by_the_next() {
    let (place, mut server) = filled();
    server.kill();
    let mut killed = 0;
    for ms in [1, 10, 25, 40, 60, 90, 140] {
        let mut removal = archipelago()
            .args(["tier", "remove", "quick", "--dir"])
            .arg(place.of("data"))
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .spawn()
            .unwrap();
        SystemClock::new().sleep(Duration::from_millis(ms));
        removal.kill().unwrap();
        killed += u32::from(removal.wait().unwrap().code().is_none());
        // The settings name both devices, so the emptied one joins again.
        let (mut server, mut client) = place.serve();
        check_all(&mut client);
        server.kill();
    }
    assert!(killed > 0, "all ended before they were killed");
    text(&remove(&place, "quick"));
    let shown = text(&db(&place.of("data"), &["tiers"]));
    assert!(!shown.contains("quick ("), "{shown}");
    assert!(LocalFs::new().list(&place.of("quick-dir")).unwrap().is_empty());
}
