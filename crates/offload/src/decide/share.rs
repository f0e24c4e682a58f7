//! Shares of the memory of a node between databases: guarantees, and loans of free memory.
//!
//! The rule is max-min fairness in two steps. First each database gets the part of its guarantee
//! that it wants. Then the rest is lent in equal steps to databases that want more. A database's
//! share is the memory that it would get if it wanted everything, while the others keep the memory
//! in use and get the memory that they claim. So a database alone at a node may use all of it, and
//! its share falls as soon as another one claims its guarantee.
//!
//! Invariants:
//! 1. The guarantees of [`guarantees`] sum up to at most the total.
//! 2. The share of a database is at least its guarantee and at most the total.
//! 3. If the shares of all databases are used, their sum is at most the total.
//!
//! Thread-safety: the functions are pure.
//! Failure: they answer every input; sums saturate.
//! Cost: O(databases · log databases).

/// Memory of one database at a node.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Claim {
    /// Bytes that it uses.
    pub used_bytes: u64,
    /// Bytes that it is guaranteed, from [`guarantees`].
    pub guaranteed_bytes: u64,
    /// Bytes that it has asked for in vain, beyond those that it uses.
    pub wanted_bytes: u64,
}

impl Claim {
    fn demand_bytes(&self) -> u64 {
        self.used_bytes.saturating_add(self.wanted_bytes)
    }

    /// Bytes of the guarantee that it wants now.
    fn guaranteed_demand_bytes(&self) -> u64 {
        self.demand_bytes().min(self.guaranteed_bytes)
    }

    /// Bytes of the guarantee that the database claims and does not have yet. Other databases must
    /// leave them free.
    #[must_use]
    pub fn owed_bytes(&self) -> u64 {
        self.guaranteed_demand_bytes().saturating_sub(self.used_bytes)
    }
}

/// The part of a stated guarantee that a node grants, if it has promised `promised_bytes` of
/// `total_bytes` to others. Promises to others are never taken back for a new one.
#[must_use]
pub fn admitted(stated_bytes: u64, total_bytes: u64, promised_bytes: u64) -> u64 {
    stated_bytes.min(total_bytes.saturating_sub(promised_bytes))
}

/// The guarantees of the databases of a node that may use `total_bytes` now, in their order.
/// `admitted` has the admitted part of each stated guarantee; `None` stands for a database that has
/// stated no guarantee. It is guaranteed an equal part of the memory that the stated guarantees
/// leave. If other users of the node leave less memory than it has promised, all promises shrink in
/// proportion.
#[must_use]
pub fn guarantees(total_bytes: u64, admitted: &[Option<u64>]) -> Vec<u64> {
    let promised = admitted.iter().flatten().fold(0u128, |sum, bytes| sum + u128::from(*bytes));
    let total = u128::from(total_bytes);
    let equal = match admitted.iter().filter(|admitted| admitted.is_none()).count() as u128 {
        0 => 0,
        count => total.saturating_sub(promised) / count,
    };
    let scaled = |bytes: u64| match promised > total {
        true => u128::from(bytes) * total / promised,
        false => u128::from(bytes),
    };
    let of = |admitted: &Option<u64>| admitted.map_or(equal, scaled) as u64;
    admitted.iter().map(of).collect()
}

/// The share of a database that is guaranteed `guaranteed_bytes`, on a node that may use
/// `total_bytes` for it and for the `others`.
#[must_use]
pub fn share(total_bytes: u64, guaranteed_bytes: u64, others: &[Claim]) -> u64 {
    let guaranteed = others.iter().map(Claim::guaranteed_demand_bytes);
    let guaranteed = guaranteed.fold(guaranteed_bytes, u64::saturating_add);
    let mut lent = total_bytes.saturating_sub(guaranteed);
    let beyond = |claim: &Claim| claim.demand_bytes().saturating_sub(claim.guaranteed_bytes);
    let mut loans: Vec<u64> = others.iter().map(beyond).filter(|loan| *loan > 0).collect();
    loans.sort_unstable();
    // The smallest loans come first. A loan that is no larger than an equal part of the remaining
    // memory is granted as a whole, and the rest of that part goes to the others. From the first
    // larger loan on, all loans that remain and that of this database are equal.
    for (served, loan) in loans.iter().enumerate() {
        let equal = lent / (loans.len() - served + 1) as u64;
        if *loan > equal {
            return guaranteed_bytes.saturating_add(equal).min(total_bytes);
        }
        lent -= loan;
    }
    guaranteed_bytes.saturating_add(lent).min(total_bytes)
}

#[cfg(test)]
mod tests {
    use archipelago_base::random::Rng;

    use super::*;

    fn claim(used_bytes: u64, guaranteed_bytes: u64, wanted_bytes: u64) -> Claim {
        Claim { used_bytes, guaranteed_bytes, wanted_bytes }
    }

    #[test]
    fn shares_follow_the_table() {
        let cases: &[(&str, u64, &[Claim], u64)] = &[
            ("a database alone has the node", 100, &[], 100),
            ("an idle database lends its guarantee", 50, &[claim(0, 50, 0)], 100),
            ("what another one uses is not lent", 50, &[claim(20, 50, 0)], 80),
            ("a lender that claims gets its guarantee back", 50, &[claim(0, 50, 50)], 50),
            ("a claim within a guarantee takes only what it wants", 50, &[claim(10, 50, 5)], 85),
            ("a borrower does not diminish a guarantee", 50, &[claim(90, 50, 0)], 50),
            ("two borrowers have equal loans", 20, &[claim(60, 20, 40)], 50),
            ("equal loans beside unequal guarantees", 10, &[claim(80, 50, 40)], 30),
            ("a small loan is served", 10, &[claim(15, 10, 0), claim(80, 10, 9)], 42),
            ("two small loans are served", 0, &[claim(10, 0, 0), claim(20, 0, 0)], 70),
            ("many large loans", 0, &[claim(90, 0, 9), claim(90, 0, 9), claim(90, 0, 9)], 25),
            ("no guarantee is left, and all is claimed", 0, &[claim(0, 100, 100)], 0),
            ("an unused node of another's guarantee", 0, &[claim(0, 100, 0)], 100),
            ("sums saturate", u64::MAX, &[claim(u64::MAX, u64::MAX, u64::MAX)], 100),
        ];
        for (what, guaranteed, others, expected) in cases {
            assert_eq!(share(100, *guaranteed, others), *expected, "{what}");
        }
    }

    #[test]
    fn guarantees_follow_the_table() {
        type Case<'a> = (&'a str, u64, &'a [Option<u64>], &'a [u64]);
        let cases: &[Case<'_>] = &[
            ("nobody", 100, &[], &[]),
            ("equal parts of everything", 100, &[None, None], &[50, 50]),
            ("equal parts of what is left", 100, &[Some(40), None, None], &[40, 30, 30]),
            ("nothing is left", 100, &[Some(40), Some(60), None], &[40, 60, 0]),
            ("a smaller node scales promises", 50, &[Some(40), None, Some(60)], &[20, 0, 30]),
            ("a node without memory", 0, &[Some(40), None], &[0, 0]),
        ];
        for (what, total, admitted, expected) in cases {
            assert_eq!(guarantees(*total, admitted), *expected, "{what}");
        }
        assert_eq!(admitted(60, 100, 30), 60);
        assert_eq!(admitted(60, 100, 70), 30, "a later promise is smaller, not an earlier one");
        assert_eq!(admitted(60, 100, 130), 0);
    }

    /// Claims of a node that is used within its total.
    fn random_node(rng: &mut Rng) -> (u64, Vec<Claim>) {
        let total = rng.u64(1..1000);
        let stated = |rng: &mut Rng| rng.bool().then(|| rng.u64(..total));
        let count = rng.usize(1..6);
        let stated: Vec<Option<u64>> = (0..count).map(|_| stated(rng)).collect();
        let mut left = total;
        let claim = |guaranteed_bytes| {
            let used_bytes = rng.u64(..=left);
            left -= used_bytes;
            let wanted_bytes = [0, rng.u64(..=total)][rng.usize(..2)];
            Claim { used_bytes, guaranteed_bytes, wanted_bytes }
        };
        (total, guarantees(total, &stated).into_iter().map(claim).collect())
    }

    /// The share of each of `claims`.
    fn shares(total: u64, claims: &[Claim]) -> Vec<u64> {
        let of = |at: usize| {
            let mut others = claims.to_vec();
            let own = others.remove(at);
            share(total, own.guaranteed_bytes, &others)
        };
        (0..claims.len()).map(of).collect()
    }

    #[test]
    fn shares_keep_their_rules() {
        let mut rng = Rng::with_seed(89);
        for round in 0..20_000 {
            let (total, claims) = random_node(&mut rng);
            let what = format!("round {round}: {total} bytes for {claims:?}");
            assert!(claims.iter().map(|claim| claim.guaranteed_bytes).sum::<u64>() <= total);
            let before = shares(total, &claims);
            for (claim, share) in claims.iter().zip(&before) {
                assert!((claim.guaranteed_bytes..=total).contains(share), "{what}");
            }
            // Databases that want everything get equal loans, and no byte more than there is.
            let greedy: Vec<Claim> =
                claims.iter().map(|claim| Claim { wanted_bytes: total, ..*claim }).collect();
            let all = shares(total, &greedy);
            assert!(all.iter().sum::<u64>() <= total, "{what}");
            let loans =
                all.iter().zip(&claims).map(|(share, claim)| share - claim.guaranteed_bytes);
            let (least, most) = (loans.clone().min(), loans.max());
            assert_eq!(least, most, "{what}");
            // A larger claim of one database raises no share of another one.
            let at = rng.usize(..claims.len());
            let mut more = claims.clone();
            more[at].wanted_bytes += rng.u64(..=total);
            for (other, share) in shares(total, &more).into_iter().enumerate() {
                assert!(other == at || share <= before[other], "{what}");
            }
        }
    }
}
