//! The calibration of the NIC model (decision 0012): FlexKV's experiment gives the ratios that its
//! text states.

use archipelago_lab::flexkv::verbs::{Effort, Verb, experiment};

/// Relative deviation that decision 0012 allows.
const TOLERANCE: f64 = 0.05;

/// Fewer operations than the command runs, and every time a thousandfold: the ratios do not depend
/// on it.
#[test]
fn the_ratios_that_flexkv_states_come_out() {
    let effort = Effort { operations: 60_000, scale: 1000, ..Effort::default() };
    let outcome = experiment(&effort).unwrap();
    for (verb, to, stated, came_out) in &outcome.ratios {
        let off = came_out / stated - 1.0;
        assert!(off.abs() <= TOLERANCE, "{verb:?} to {to:?}: {came_out:.2}, stated {stated}");
    }
    // "While also exhibiting lower latency": medians, one client per compute node.
    let median = |verb| outcome.measured.iter().find(|m| m.verb == verb).unwrap().median_ns;
    for verb in [Verb::RemoteWrite, Verb::SendReceive, Verb::LocalSwap] {
        assert!(median(verb) < median(Verb::RemoteSwap), "{verb:?}: {:?}", outcome.measured);
    }
}
