//! Settings of a compute node, as an operator writes them in TOML.
//!
//! The functions are pure.

use std::collections::BTreeMap;
use std::path::PathBuf;

use archipelago_base::{Error, Result};
use archipelago_engine::options::{CfOptions, DbOptions};
use archipelago_tier::DeviceSettings;
use serde::{Deserialize, Serialize};

/// Settings of a compute node. Everything has a default; unknown names are refused.
///
/// ```
/// let settings = archipelago_compute::Settings::parse(
///     "[database]\nmax_background_jobs = 4\n[families.default]\nbuckets = 8\n",
/// )?;
/// assert_eq!(settings.database.max_background_jobs, 4);
/// # Ok::<(), archipelago_base::Error>(())
/// ```
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Settings {
    /// Directory of this machine for the write-ahead log, with nothing else in it. Default: none,
    /// and the log lies with the tables: in the directory or the volume of the database. The place
    /// is chosen when the database is created. If the log has a directory of its own, every open
    /// without that directory fails.
    pub log_dir: Option<PathBuf>,
    /// Devices of the database, the fastest first. Default: none, and the database is in its
    /// directory, or on the tiers that the directory names.
    pub tiers: Vec<DeviceSettings>,
    /// Settings of the database; see [`DbOptions`].
    pub database: DbOptions,
    /// Settings of column families by name; see [`CfOptions`]. A family that is not named keeps its
    /// stored settings.
    pub families: BTreeMap<String, CfOptions>,
}

impl Settings {
    /// Parses and validates TOML. The error names the line, the setting, its value and the allowed
    /// values.
    pub fn parse(text: &str) -> Result<Self> {
        let settings: Self =
            toml::from_str(text).map_err(|error| Error::invalid(error.to_string()))?;
        settings.validate()?;
        Ok(settings)
    }

    /// Checks that all settings are valid and fit together.
    pub fn validate(&self) -> Result<()> {
        self.database.validate().map_err(|error| error.context_at("[database]"))?;
        if !self.tiers.is_empty() {
            archipelago_tier::settings::validate(&self.tiers)
                .map_err(|error| error.context_at("[[tiers]]"))?;
        }
        match &self.log_dir {
            Some(_) if !self.tiers.is_empty() => {
                return Err(Error::invalid(
                    "log_dir: a database on tiers keeps its log on the fastest device: leave \
                     log_dir or [[tiers]] out",
                ));
            }
            Some(_) if self.database.log_buffer_bytes > 0 => {
                return Err(Error::invalid(
                    "log_dir: log_buffer_bytes is for a log on storage nodes: leave one of them \
                     out",
                ));
            }
            _ => {}
        }
        for (name, family) in &self.families {
            family.validate().map_err(|error| error.context_at(format!("[families.{name}]")))?;
        }
        Ok(())
    }

    /// All settings with their values, as TOML.
    pub fn to_toml(&self) -> Result<String> {
        toml::to_string_pretty(self).map_err(|error| Error::invalid(error.to_string()))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn settings_are_read_back_and_mistakes_are_named() {
        let mut settings = Settings::default();
        settings.families.insert("default".to_owned(), CfOptions::default());
        let text = settings.to_toml().unwrap();
        assert_eq!(Settings::parse(&text).unwrap(), settings);
        let unknown = Settings::parse("[database]\nmax_jobs = 3\n").unwrap_err().to_string();
        assert!(unknown.contains("max_jobs"), "{unknown}");
        let out_of_range =
            Settings::parse("[families.default]\nwrite_buffers_max = 1\n").unwrap_err();
        let text = out_of_range.to_string();
        assert!(text.contains("families.default") && text.contains("at least 2"), "{text}");
    }

    #[test]
    fn log_directory_is_read_back_and_fits_no_other_place_of_the_log() {
        let text = "log_dir = \"/wal/reef\"\n[database]\nmax_background_jobs = 4\n";
        let settings = Settings::parse(text).unwrap();
        assert_eq!(settings.log_dir.as_deref(), Some(std::path::Path::new("/wal/reef")));
        assert_eq!(Settings::parse(&settings.to_toml().unwrap()).unwrap(), settings);
        let buffered = Settings::parse(&text.replace("max_background_jobs", "log_buffer_bytes"));
        let error = buffered.unwrap_err().to_string();
        assert!(error.contains("log_buffer_bytes is for a log on storage nodes"), "{error}");
    }

    #[test]
    fn background_mode_is_an_unknown_setting() {
        for mode in ["manual", "threads"] {
            let text = format!("[database]\nbackground = \"{mode}\"\n");
            let error = Settings::parse(&text).unwrap_err();
            assert_eq!(error.kind(), archipelago_base::ErrorKind::InvalidArgument);
            assert!(error.to_string().contains("unknown field `background`"), "{error}");
        }
        assert!(!Settings::default().to_toml().unwrap().contains("background ="));
    }
}
