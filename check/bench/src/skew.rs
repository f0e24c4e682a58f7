//! Zipfian ranks for any skew from 0 on, by rejection-inversion (Hörmann and Derflinger,
//! "Rejection-inversion to generate variates from monotone discrete distributions", 1996).
//!
//! YCSB's own generator stops below 1, while production caches have skews up to 2.7. The method
//! sums nothing, so making a generator takes constant time for any number of ranks.
//!
//! Cost: a draw takes about four logarithms or exponentials, and rarely twice that.

use archipelago_base::random::Rng;

/// Ranks `0..n`; the share of rank r is proportional to (r+1)^-alpha.
#[derive(Clone, Copy, Debug)]
pub struct Skew {
    n: f64,
    alpha: f64,
    first: f64,
    last: f64,
    near: f64,
}

impl Skew {
    /// Ranks `0..n` (at least one) with a skew of at least 0.
    #[must_use]
    pub fn new(n: u64, alpha: f64) -> Self {
        let (n, alpha) = (n.max(1) as f64, alpha.max(0.0));
        let area = |x: f64| area(alpha, x);
        let near = 2.0 - area_inverse(alpha, area(2.5) - height(alpha, 2.0));
        Self { n, alpha, first: area(1.5) - 1.0, last: area(n + 0.5), near }
    }

    /// Draws the next rank.
    #[must_use]
    pub fn next(&self, rng: &mut Rng) -> u64 {
        loop {
            let u = self.last + rng.f64() * (self.first - self.last);
            let x = area_inverse(self.alpha, u);
            let k = x.round().clamp(1.0, self.n);
            if k - x <= self.near || u >= area(self.alpha, k + 0.5) - height(self.alpha, k) {
                return k as u64 - 1;
            }
        }
    }
}

/// Spreads ranks over the key space, so that hot keys are not neighbours (FNV-1a, 64 bit).
#[inline]
#[must_use]
pub fn scramble(rank: u64, n: u64) -> u64 {
    let mut hash = 0xcbf2_9ce4_8422_2325u64;
    for byte in rank.to_le_bytes() {
        hash = (hash ^ u64::from(byte)).wrapping_mul(0x0000_0100_0000_01b3);
    }
    ((u128::from(hash) * u128::from(n)) >> 64) as u64
}

/// Value of `x^-alpha`, the unscaled probability.
fn height(alpha: f64, x: f64) -> f64 {
    (-alpha * x.ln()).exp()
}

/// The integral of [`height`] from 1 to x.
fn area(alpha: f64, x: f64) -> f64 {
    let log = x.ln();
    let scaled = (1.0 - alpha) * log;
    // expm1(t)/t, also where t is near 0.
    let factor = if scaled.abs() > 1e-8 { scaled.exp_m1() / scaled } else { 1.0 + scaled / 2.0 };
    factor * log
}

fn area_inverse(alpha: f64, y: f64) -> f64 {
    let scaled = (y * (1.0 - alpha)).max(-1.0);
    let factor = if scaled.abs() > 1e-8 { scaled.ln_1p() / scaled } else { 1.0 - scaled / 2.0 };
    (factor * y).exp()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ranks_have_their_shares_at_any_skew() {
        for alpha in [0.0, 0.3, 0.99, 1.0, 1.5, 2.6774] {
            let n = 1000;
            let skew = Skew::new(n, alpha);
            let mut rng = Rng::with_seed(3);
            let mut seen = vec![0.0; n as usize];
            let draws = 400_000;
            for _ in 0..draws {
                seen[skew.next(&mut rng) as usize] += 1.0 / f64::from(draws);
            }
            let weight = |r: usize| (r as f64 + 1.0).powf(-alpha);
            let all: f64 = (0..n as usize).map(weight).sum();
            for ranks in [0..1, 1..2, 2..10, 10..100, 100..1000] {
                let got: f64 = seen[ranks.clone()].iter().sum();
                let wanted = ranks.clone().map(weight).sum::<f64>() / all;
                let noise = 4.0 * (wanted / f64::from(draws)).sqrt();
                assert!((got - wanted).abs() < noise + 1e-6, "{alpha} {ranks:?}: {got} {wanted}");
            }
        }
    }

    #[test]
    fn one_rank_and_many_stay_in_bounds() {
        let mut rng = Rng::with_seed(4);
        for n in [1, 2, 1 << 40] {
            for alpha in [0.0, 0.99, 3.0] {
                let skew = Skew::new(n, alpha);
                assert!((0..2000).all(|_| skew.next(&mut rng) < n), "{n} {alpha}");
            }
        }
    }
}
