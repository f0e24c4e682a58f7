//! The file of `--tiers`.

use std::path::Path;

use archipelago_base::{Error, Result};
use archipelago_env::local::LocalFs;
use archipelago_env::{FileClass, FileSystem, IoContext, IoPurpose};
use archipelago_tier::DeviceSettings;
use serde::{Deserialize, Serialize};

/// Devices as in a server's settings (`[[tiers]]`), and settings for experiments.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct TierPlan {
    /// Fixed number of copying and moving threads. By default the number follows the devices.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub threads_fixed: Option<usize>,
    /// Fixed number of levels on the fastest device. By default the scheme decides and follows the
    /// observed load.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub fast_levels: Option<u8>,
    /// Whether flushes and compactions wait for each other when a device takes no more writers. By
    /// default they do.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub in_turn: Option<bool>,
    /// Devices in order of speed, with the fastest device first.
    #[serde(default)]
    pub tiers: Vec<DeviceSettings>,
}

impl TierPlan {
    /// Reads and checks a file. Errors: `InvalidArgument`, which names the field and the fault.
    pub(crate) fn read(path: &Path) -> Result<Self> {
        let context = IoContext::new(FileClass::Other, IoPurpose::Maintenance);
        let bytes = LocalFs::new().read(path, context)?;
        let text = String::from_utf8(bytes)
            .map_err(|_| Error::invalid(format!("{} is not UTF-8", path.display())))?;
        let plan: Self = toml::from_str(&text)
            .map_err(|error| Error::invalid(format!("{}: {error}", path.display())))?;
        archipelago_tier::settings::validate(&plan.tiers)?;
        if plan.threads_fixed == Some(0) || plan.threads_fixed > Some(64) {
            return Err(Error::invalid("`threads_fixed` is not within 1 and 64"));
        }
        Ok(plan)
    }

    /// The file's text.
    pub fn to_toml(&self) -> Result<String> {
        toml::to_string(self).map_err(|error| Error::invalid(format!("tiers: {error}")))
    }
}

#[cfg(test)]
mod tests {
    use archipelago_tier::DeviceKind;

    use super::*;

    fn write(file: &Path, text: &str) {
        let context = IoContext::new(FileClass::Other, IoPurpose::Maintenance);
        LocalFs::new().write_atomic(file, text.as_bytes(), context).expect("written");
    }

    #[test]
    fn a_plan_reads_back_and_nonsense_is_refused() {
        let dir = tempfile::tempdir().expect("a directory");
        let file = dir.path().join("tiers.toml");
        let plan = TierPlan {
            threads_fixed: Some(4),
            fast_levels: None,
            in_turn: Some(false),
            tiers: vec![
                DeviceSettings::new("/a", DeviceKind::Mapped),
                DeviceSettings::new("/b", DeviceKind::Directory),
            ],
        };
        write(&file, &plan.to_toml().expect("TOML"));
        assert_eq!(TierPlan::read(&file).expect("a plan"), plan);
        for (text, word) in [
            ("fast_level = 3", "fast_level"),
            ("", "0 devices"),
            ("threads_fixed = 0\n[[tiers]]\npath='/a'", "threads_fixed"),
        ] {
            write(&file, text);
            let error = TierPlan::read(&file).expect_err("refused").to_string();
            assert!(error.contains(word), "{error}");
        }
    }
}
