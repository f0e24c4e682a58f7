//! Max-min fairness: the rates of flows that share links and streams. The function is pure.
//!
//! All rates grow together from zero, each by the weight of its flow. A flow stops growing when it
//! has reached its own limit, or when a resource that it uses is full. So a flow could get more
//! only at the expense of a flow that has less for its weight.
//!
//! Cost: O(flows · resources) for each flow that stops, at most.

/// Use of a resource by a flow.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct Use {
    /// Position of the resource in the list of capacities.
    pub(super) resource: usize,
    /// Units of the resource for each unit of the flow.
    pub(super) share: f64,
}

/// A flow over some resources.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct Flow {
    /// Highest rate of the flow, which is finite.
    pub(super) rate_max: f64,
    /// Number of streams that the flow counts for.
    pub(super) weight: f64,
    pub(super) uses: Vec<Use>,
}

/// Share of a capacity or a limit that counts as nothing, because of rounding.
const ROUNDING: f64 = 1e-9;

/// The rate of each flow.
pub(super) fn rates(flows: &[Flow], capacities: &[f64]) -> Vec<f64> {
    let mut rates = vec![0.0; flows.len()];
    let mut left = capacities.to_vec();
    let mut demand = vec![0.0; capacities.len()];
    let mut growing: Vec<usize> = (0..flows.len()).filter(|at| flows[*at].rate_max > 0.0).collect();
    let mut level = 0.0f64;
    while !growing.is_empty() {
        demand.fill(0.0);
        for flow in growing.iter().map(|at| &flows[*at]) {
            for used in &flow.uses {
                demand[used.resource] += flow.weight * used.share;
            }
        }
        let by_flow = growing.iter().map(|at| flows[*at].rate_max / flows[*at].weight - level);
        let asked = demand.iter().zip(&left).filter(|(demand, _)| **demand > 0.0);
        let by_resource = asked.map(|(demand, left)| left / demand);
        let step = by_flow.chain(by_resource).fold(f64::INFINITY, f64::min).max(0.0);
        level += step;
        for (left, demand) in left.iter_mut().zip(&demand) {
            *left -= demand * step;
        }
        let is_full = |used: &Use| left[used.resource] <= capacities[used.resource] * ROUNDING;
        let before = growing.len();
        growing.retain(|at| {
            let flow = &flows[*at];
            rates[*at] = level * flow.weight;
            rates[*at] < flow.rate_max * (1.0 - ROUNDING) && !flow.uses.iter().any(is_full)
        });
        if growing.len() == before {
            // Rounding has left a rest that is neither full nor worth another step.
            break;
        }
    }
    rates
}

#[cfg(test)]
mod tests {
    use super::*;

    fn flow(rate_max: f64, uses: &[(usize, f64)]) -> Flow {
        let uses = uses.iter().map(|&(resource, share)| Use { resource, share }).collect();
        Flow { rate_max, weight: 1.0, uses }
    }

    fn assert_rates(flows: &[Flow], capacities: &[f64], wanted: &[f64]) {
        let rates = rates(flows, capacities);
        assert_eq!(rates.len(), wanted.len());
        for (rate, wanted) in rates.iter().zip(wanted) {
            assert!((rate - wanted).abs() < 1e-6, "{rates:?}, not {wanted}");
        }
    }

    #[test]
    fn two_flows_have_equal_parts_of_one_link() {
        let greedy = flow(100.0, &[(0, 1.0)]);
        assert_rates(&[greedy.clone(), greedy.clone()], &[60.0], &[30.0, 30.0]);
        // A flow that wants less leaves the rest to the other one.
        assert_rates(&[flow(10.0, &[(0, 1.0)]), greedy], &[60.0], &[10.0, 50.0]);
    }

    #[test]
    fn flow_over_two_links_has_the_part_of_the_narrower_one() {
        // The first link has 30 for two flows, so the second flow of the second link gets 85.
        let flows = [
            flow(100.0, &[(0, 1.0)]),
            flow(100.0, &[(0, 1.0), (1, 1.0)]),
            flow(100.0, &[(1, 1.0)]),
        ];
        assert_rates(&flows, &[30.0, 100.0], &[15.0, 15.0, 85.0]);
    }

    #[test]
    fn owners_that_fill_one_link_have_equal_parts_of_it() {
        // Each owner has a link of 400 of its own, and all share one of 1,000.
        let owners: Vec<Flow> = (1..=5).map(|own| flow(900.0, &[(0, 1.0), (own, 1.0)])).collect();
        let capacities = [1000.0, 400.0, 400.0, 400.0, 400.0, 400.0];
        assert_rates(&owners, &capacities, &[200.0; 5]);
        // Two owners are limited by their own links.
        assert_rates(&owners[..2], &capacities, &[400.0; 2]);
    }

    #[test]
    fn streams_limit_flows_of_a_wide_link() {
        let streams: Vec<Flow> = (0..4).map(|_| flow(75.0, &[(0, 1.0)])).collect();
        assert_rates(&streams, &[1000.0], &[75.0; 4]);
        assert_rates(&streams, &[120.0], &[30.0; 4]);
        assert_rates(&[flow(75.0, &[])], &[], &[75.0]);
    }

    #[test]
    fn flow_that_reads_and_writes_uses_half_of_its_rate_in_each_direction() {
        let compaction = flow(100.0, &[(0, 0.5), (1, 0.5)]);
        assert_rates(std::slice::from_ref(&compaction), &[20.0, 40.0], &[40.0]);
        // Half of the rate of one and the rate of the other fill the link of 20.
        let flush = flow(100.0, &[(0, 1.0)]);
        assert_rates(&[compaction, flush], &[20.0, 40.0], &[40.0 / 3.0, 40.0 / 3.0]);
    }

    #[test]
    fn weight_counts_as_so_many_streams() {
        let reads = Flow { weight: 3.0, ..flow(100.0, &[(0, 1.0)]) };
        assert_rates(&[reads, flow(100.0, &[(0, 1.0)])], &[40.0], &[30.0, 10.0]);
        assert_rates(&[flow(0.0, &[(0, 1.0)])], &[40.0], &[0.0]);
    }
}
