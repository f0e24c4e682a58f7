//! Text of `archipelago cluster status`: the pool, and the store over it. Pure functions.

use std::fmt::Write;

use archipelago_base::size;
use archipelago_flexkv::wire::{Figure, StoreStatus};
use archipelago_pool::wire::{BlockState, BlockStatus, NodeCounters, PoolStatus};

fn words(state: BlockState) -> &'static str {
    match state {
        BlockState::Whole => "whole",
        BlockState::Short => "too few copies",
        BlockState::Changing => "changing",
        BlockState::Waiting => "waiting",
        BlockState::Unconfirmed => "unconfirmed",
        BlockState::Released => "released",
    }
}

/// The status of the pool as text. With `all` it lists every block of the manager's answer.
pub(crate) fn show(status: &PoolStatus, all: bool) -> String {
    let mut out = String::new();
    // Writing to a string does not fail.
    let _infallible = write(&mut out, status, all);
    out
}

fn write(out: &mut String, status: &PoolStatus, all: bool) -> std::fmt::Result {
    let state = if status.rebuilding {
        "waiting for reports of the nodes after its start"
    } else {
        "ready"
    };
    writeln!(out, "Manager: {state}, term {}, {} copies", status.term, status.copies)?;
    if status.lost > 0 {
        writeln!(
            out,
            "WARNING: {} blocks have lost every copy, so their data is gone",
            status.lost
        )?;
    }
    nodes(out, status)?;
    counters(out, status)?;
    writeln!(out, "\n{:<18} {:>16} {:>8} {:>9}", "CLIENT", "LABEL", "BLOCKS", "HEARD")?;
    for client in &status.clients {
        let (id, label, blocks) = (client.client, client.label, client.blocks);
        let heard = client.heard_ms;
        writeln!(out, "{:<18} {label:>16x} {blocks:>8} {heard:>6} ms", id.to_string())?;
    }
    if status.clients.is_empty() {
        writeln!(out, "(none)")?;
    }
    blocks(out, status, all)
}

/// The number of blocks by state, and the blocks that need attention. With `all` it lists all.
fn blocks(out: &mut String, status: &PoolStatus, all: bool) -> std::fmt::Result {
    let count = |state| status.blocks.iter().filter(|block| block.state == state).count();
    let states = [
        BlockState::Whole,
        BlockState::Short,
        BlockState::Changing,
        BlockState::Waiting,
        BlockState::Unconfirmed,
        BlockState::Released,
    ];
    let counts: Vec<String> = states
        .into_iter()
        .filter(|state| count(*state) > 0)
        .map(|state| format!("{} {}", count(state), words(state)))
        .collect();
    let listed =
        if status.blocks_total > status.blocks.len() as u64 { " of those listed" } else { "" };
    let counts =
        if counts.is_empty() { String::new() } else { format!(": {}{listed}", counts.join(", ")) };
    writeln!(out, "\nBlocks: {}{counts}", status.blocks_total)?;
    let worth = |block: &&BlockStatus| all || block.state != BlockState::Whole;
    let shown: Vec<&BlockStatus> = status.blocks.iter().filter(worth).collect();
    if !shown.is_empty() {
        writeln!(out, "{:<12} {:<18} {:<20} {:<16} STATE", "BLOCK", "OWNER", "EPOCH", "COPIES")?;
    }
    for block in shown {
        let config = &block.config;
        let owner = config.owner.map_or_else(|| "nobody".to_owned(), |owner| owner.to_string());
        let copies: Vec<String> = config.copies.iter().map(|copy| copy.node.to_string()).collect();
        let (id, copies) = (config.block.to_string(), copies.join(","));
        write!(
            out,
            "{id:<12} {owner:<18} {:<20} {copies:<16} {}",
            config.epoch,
            words(block.state)
        )?;
        let waits: Vec<String> = block.waits_for.iter().map(ToString::to_string).collect();
        match block.state {
            BlockState::Waiting | BlockState::Unconfirmed if !waits.is_empty() => writeln!(
                out,
                " for node {}: start it again, or, if its memory is lost, run: archipelago cluster forget NODE",
                waits.join(", ")
            )?,
            _ => writeln!(out)?,
        }
    }
    Ok(())
}

fn nodes(out: &mut String, status: &PoolStatus) -> std::fmt::Result {
    writeln!(
        out,
        "\n{:<6} {:<8} {:>14} {:>8} {:>10} {:>10} {:>9}  ADDRESSES",
        "NODE", "STATE", "LIFE", "BLOCKS", "USED", "LEFT", "HEARD"
    )?;
    for node in &status.nodes {
        let left = node.blocks_max.saturating_sub(node.blocks_used);
        let member = &node.member;
        writeln!(
            out,
            "{:<6} {:<8} {:>14} {:>8} {:>10} {:>10} {:>6} ms  {}",
            member.node.to_string(),
            if member.up { "up" } else { "silent" },
            member.life.to_string(),
            format!("{}/{}", node.blocks_used, node.blocks_max),
            size::show(node.blocks_used * node.block_bytes),
            size::show(left * node.block_bytes),
            node.heard_ms,
            member.endpoints.join(" ")
        )?;
    }
    if status.nodes.is_empty() {
        writeln!(out, "(none has registered)")?;
    }
    Ok(())
}

/// Counters of each node since its start: of its fabric and its blocks, and its refusals by reason.
fn counters(out: &mut String, status: &PoolStatus) -> std::fmt::Result {
    if status.nodes.is_empty() {
        return Ok(());
    }
    writeln!(
        out,
        "\n{:<6} {:>12} {:>10} {:>9} {:>8} {:>7} {:>7} {:>7} {:>7} {:>10}  REFUSALS",
        "NODE",
        "OPERATIONS",
        "REQUESTS",
        "REPEATED",
        "REFUSED",
        "BROKEN",
        "GIVEN",
        "FREED",
        "FILLED",
        "BYTES"
    )?;
    for node in &status.nodes {
        let counted = &node.counters;
        writeln!(
            out,
            "{:<6} {:>12} {:>10} {:>9} {:>8} {:>7} {:>7} {:>7} {:>7} {:>10}  {}",
            node.member.node.to_string(),
            counted.operations,
            counted.requests,
            counted.duplicates,
            counted.refused,
            counted.malformed,
            counted.given,
            counted.freed,
            counted.filled,
            size::show(counted.filled_bytes),
            refusals(counted)
        )?;
    }
    Ok(())
}

fn refusals(counted: &NodeCounters) -> String {
    if counted.refusals.is_empty() {
        return "none".to_owned();
    }
    let each = counted.refusals.iter().map(|of| format!("{} {}", of.why.words(), of.count));
    each.collect::<Vec<String>>().join(", ")
}

/// The status of the store and its compute nodes as text.
pub(crate) fn show_store(status: &StoreStatus) -> String {
    let mut out = String::new();
    // Writing to a string does not fail.
    let _infallible = write_store(&mut out, status);
    out
}

fn write_store(out: &mut String, status: &StoreStatus) -> std::fmt::Result {
    writeln!(
        out,
        "\nStore: {} partitions, {} of them with a proxy (wanted: {:.1} %), map {} {}",
        status.partitions,
        status.offloaded,
        f64::from(status.offload) / 10.0,
        status.version,
        if status.settled { "at rest" } else { "changing" }
    )?;
    for line in figure_lines(&status.figures) {
        writeln!(out, "  {line}")?;
    }
    writeln!(
        out,
        "\n{:<8} {:<18} {:>10} {:>8} {:>12} {:>12} {:>9}  ADDRESSES",
        "COMPUTE", "CLIENT", "PARTITIONS", "PROXY OF", "READS", "WRITES", "HIT RATE"
    )?;
    for node in &status.nodes {
        let figure = |name: &str| node.figures.iter().find(|figure| figure.name == name);
        let count = |name: &str| figure(name).map_or(0, |figure| figure.value);
        let shown = |name: &str| figure(name).map_or_else(|| "-".into(), |f| f.value.to_string());
        let hits = count("pair_hits") + count("address_hits");
        let looked = hits + count("misses");
        let rate = if looked == 0 {
            "-".to_owned()
        } else {
            format!("{:.1} %", 100.0 * hits as f64 / looked as f64)
        };
        writeln!(
            out,
            "{:<8} {:<18} {:>10} {:>8} {:>12} {:>12} {rate:>9}  {}",
            node.member.number,
            node.member.client.to_string(),
            node.partitions,
            node.offloaded,
            shown("reads"),
            shown("writes"),
            node.member.endpoints.join(" ")
        )?;
        if !node.answered {
            writeln!(out, "  does not answer")?;
        }
        for line in figure_lines(&node.figures) {
            writeln!(out, "  {line}")?;
        }
    }
    if status.nodes.is_empty() {
        writeln!(out, "(none)")?;
    }
    Ok(())
}

/// Figures as text, six per line.
fn figure_lines(figures: &[Figure]) -> Vec<String> {
    let told = |figure: &Figure| format!("{} {}", figure.name, figure.value);
    let joined = |some: &[Figure]| some.iter().map(told).collect::<Vec<_>>().join(", ");
    figures.chunks(6).map(joined).collect()
}
