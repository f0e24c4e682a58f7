//! The file `scheme.toml` on devices.

use std::path::Path;
use std::sync::Arc;

use archipelago_env::mem::MemFs;
use archipelago_env::{CreateOptions, IoContext, IoPurpose};
use archipelago_tier::DeviceSettings;
use archipelago_tier::scheme::{DeviceProfile, Scheme};

use crate::world::{READ, World};

/// Writes a scheme to a device: the number of fast levels, and of the writers that it takes.
fn write_scheme(world: &World, device: &DeviceSettings, fast_levels: u8, writers_max: u32) {
    let name = device.name.clone();
    let profile = DeviceProfile { name, writers_max, readers_max: 1, ..DeviceProfile::default() };
    let scheme = Scheme::of_profile(vec![profile], &Default::default(), 0);
    let text = Scheme { fast_levels, ..scheme }.to_toml().unwrap();
    world.disk.create_dir_all(&device.path).unwrap();
    let file = device.path.join("scheme.toml");
    let context = IoContext::manifest(IoPurpose::ForegroundWrite);
    world.disk.write_atomic(&file, text.as_bytes(), context).unwrap();
}

/// Tiers whose policy does not fix the number of fast levels.
fn unpinned() -> World {
    let mut world = World::new(Arc::new(MemFs::new()), &[1 << 20, 1 << 20]);
    world.policy.fast_levels = None;
    world
}

/// Number of levels of the fastest device, and of the writers that each device takes.
fn taken(world: &World) -> (u8, Vec<u32>) {
    let stats = world.open().stats();
    (stats.fast_levels, stats.devices.iter().map(|device| device.limit).collect())
}

#[test]
fn scheme_on_disk_counts_from_the_next_open() {
    let mut world = unpinned();
    assert_eq!(taken(&world), (3, vec![16, 16]));
    write_scheme(&world, &world.devices[0], 2, 5);
    assert_eq!(taken(&world), (2, vec![5, 16]));
    world.devices[0].writers_max = 7;
    assert_eq!(taken(&world), (2, vec![7, 16]), "the settings are kept");
}

#[test]
fn scheme_comes_from_the_home_device() {
    let mut world = unpinned();
    assert_eq!(taken(&world), (3, vec![16, 16]));
    write_scheme(&world, &world.devices[0], 2, 5);
    let faster = DeviceSettings {
        name: "faster".to_owned(),
        path: "/faster".into(),
        ..world.devices[0].clone()
    };
    world.devices.insert(0, faster);
    assert_eq!(taken(&world), (2, vec![16, 5, 16]));
    write_scheme(&world, &world.devices[1], 4, 9);
    assert_eq!(taken(&world), (4, vec![16, 9, 16]));
}

#[test]
fn interrupted_profile_leaves_a_device_that_opens() {
    let world = unpinned();
    let left = Path::new("/dev0/scheme.toml.tmp");
    world.disk.create_dir_all(Path::new("/dev0/profile")).unwrap();
    drop(world.disk.create(left, READ, CreateOptions::default()).unwrap());
    assert_eq!(taken(&world), (3, vec![16, 16]));
}
