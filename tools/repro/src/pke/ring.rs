//! Polynomials of degree below 256 modulo q = 3329 and X²⁵⁶ + 1 (FIPS 203 §2.4.4, §4.3).
//!
//! Coefficients are `i16`, of either sign and not always reduced. Products are Montgomery products
//! with R = 2¹⁶: [`multiply`] returns a·b/R, and a constant of a later step contains the factor
//! that cancels 1/R. No step branches on a coefficient, divides by a variable or indexes by one.

use zeroize::Zeroize;

/// Number of coefficients of a polynomial.
pub(super) const N: usize = 256;

/// The modulus.
pub(super) const Q: i16 = 3329;

/// 1/q modulo 2¹⁶.
const Q_INVERSE: i16 = inverse_of_q();

/// R² modulo q: the factor that cancels the 1/R of a Montgomery product.
const R_SQUARED: i16 = montgomery(1 << 16);

/// R²/128 modulo q, the final factor of the inverse transform: it cancels the 1/R of a product and
/// the transform's factor of 128.
const R_SQUARED_OVER_128: i16 = multiply_slow(R_SQUARED, power(128, Q as u32 - 2));

/// Powers of ζ = 17 in the order of the transform, times R: entry `i` has as its exponent the seven
/// bits of `i` reversed (FIPS 203, appendix A).
const ZETAS: [i16; 128] = zetas();

/// A polynomial, or its transform.
#[derive(Clone, Zeroize)]
pub(super) struct Poly(pub(super) [i16; N]);

/// A transform, prepared for multiplication by several others.
///
/// A product of two transforms is 128 products of pairs modulo X² − γ:
/// (a₀ + a₁X)(b₀ + b₁X) = a₀b₀ + a₁b₁γ + (a₀b₁ + a₁b₀)X.
/// With the pairs of b in two layouts, both coefficients are sums of adjacent products, which
/// processors compute in one instruction.
#[derive(Clone, Zeroize)]
pub(super) struct Multiplicand {
    /// b₀ and b₁γ.
    straight: [i16; N],
    /// b₁ and b₀.
    crossed: [i16; N],
}

impl Poly {
    pub(super) const ZERO: Self = Self([0; N]);

    /// Adds `other` without reduction: the caller ensures that sums fit 16 bits.
    pub(super) fn add(&mut self, other: &Self) {
        for (a, b) in self.0.iter_mut().zip(&other.0) {
            *a += b;
        }
    }

    /// Replaces this by `other` minus this, without reduction.
    pub(super) fn subtract_from(&mut self, other: &Self) {
        for (a, b) in self.0.iter_mut().zip(&other.0) {
            *a = b - *a;
        }
    }

    /// Reduces every coefficient to within ±q/2.
    pub(super) fn centre(&mut self) {
        for a in &mut self.0 {
            *a = reduce(*a);
        }
    }

    /// Reduces every coefficient to [0, q).
    pub(super) fn normalise(&mut self) {
        for a in &mut self.0 {
            let reduced = reduce(*a);
            *a = reduced + ((reduced >> 15) & Q);
        }
    }

    /// Transforms in place (FIPS 203, algorithm 9). The absolute values of coefficients must be
    /// below q, and are at most q/2 after.
    pub(super) fn transform(&mut self) {
        let mut place = 1;
        let mut half = N / 2;
        while half >= 2 {
            for block in self.0.chunks_exact_mut(2 * half) {
                let zeta = ZETAS[place];
                place += 1;
                let (low, high) = block.split_at_mut(half);
                for (a, b) in low.iter_mut().zip(high) {
                    // Each of seven layers adds at most q: 8q is below 2¹⁵.
                    let product = multiply(*b, zeta);
                    *b = *a - product;
                    *a += product;
                }
            }
            half /= 2;
        }
        self.centre();
    }

    /// Inverts the transform of a product in place (FIPS 203, algorithm 10), and cancels the
    /// product's 1/R. The absolute values of coefficients must be below q, and are below q after.
    pub(super) fn invert_product(&mut self) {
        let mut place = ZETAS.len();
        let mut half = 2;
        while half <= N / 2 {
            for block in self.0.chunks_exact_mut(2 * half) {
                place -= 1;
                let zeta = ZETAS[place];
                let (low, high) = block.split_at_mut(half);
                for (a, b) in low.iter_mut().zip(high) {
                    let difference = *b - *a;
                    *a = reduce(*a + *b);
                    *b = multiply(difference, zeta);
                }
            }
            half *= 2;
        }
        for a in &mut self.0 {
            *a = multiply(*a, R_SQUARED_OVER_128);
        }
    }

    /// Cancels a product's 1/R; the result remains a transform.
    pub(super) fn restore_product(&mut self) {
        for a in &mut self.0 {
            *a = multiply(*a, R_SQUARED);
        }
    }
}

impl Multiplicand {
    /// Prepares a transform with coefficients within ±q/2.
    pub(super) fn new(poly: &Poly) -> Self {
        let (mut straight, mut crossed) = (poly.0, poly.0);
        // Two pairs share a ζ of the last layer; the second uses −ζ.
        let zetas = ZETAS[N / 4..].iter();
        for (pairs, zeta) in straight.chunks_exact_mut(4).zip(zetas) {
            pairs[1] = multiply(pairs[1], *zeta);
            pairs[3] = multiply(pairs[3], -zeta);
        }
        for pair in crossed.chunks_exact_mut(2) {
            pair.swap(0, 1);
        }
        Self { straight, crossed }
    }

    /// Returns the original transform.
    pub(super) fn poly(&self) -> Poly {
        let mut poly = Poly(self.straight);
        let crossed = self.crossed.chunks_exact(2);
        for (pair, crossed) in poly.0.chunks_exact_mut(2).zip(crossed) {
            pair[1] = crossed[0];
        }
        poly
    }
}

/// Returns the sum of the products of `row`'s transforms with those of `column`, divided by R.
///
/// `row`'s coefficients are in (−q, q). The sums of at most four products are below 4·2·q², within
/// the limit of Montgomery's reduction (q·2¹⁵).
pub(super) fn inner_product<'a>(
    row: impl Iterator<Item = &'a Poly>,
    column: &[Multiplicand],
) -> Poly {
    let mut sums = [0_i32; N];
    for (a, b) in row.zip(column) {
        let multiplicands = b.straight.chunks_exact(2).zip(b.crossed.chunks_exact(2));
        let pairs = a.0.chunks_exact(2).zip(multiplicands);
        let (constant, linear) = sums.split_at_mut(N / 2);
        for ((constant, linear), (a, (straight, crossed))) in
            constant.iter_mut().zip(linear).zip(pairs)
        {
            *constant += product_of_pairs(a, straight);
            *linear += product_of_pairs(a, crossed);
        }
    }
    let mut product = Poly::ZERO;
    for (i, pair) in product.0.chunks_exact_mut(2).enumerate() {
        pair[0] = montgomery_reduce(sums[i]);
        pair[1] = montgomery_reduce(sums[N / 2 + i]);
    }
    product
}

/// Returns the sum of both products of two pairs.
fn product_of_pairs(a: &[i16], b: &[i16]) -> i32 {
    i32::from(a[0]) * i32::from(b[0]) + i32::from(a[1]) * i32::from(b[1])
}

/// Returns a·b/R modulo q, in (−q, q), for |a·b| below q·2¹⁵.
const fn multiply(a: i16, b: i16) -> i16 {
    let low = a.wrapping_mul(b).wrapping_mul(Q_INVERSE);
    // a·b − low·q is a multiple of R, so the difference of the upper halves is exact.
    high(a, b) - high(low, Q)
}

/// Returns a/R modulo q, in (−q, q), for |a| below q·2¹⁵.
const fn montgomery_reduce(a: i32) -> i16 {
    let low = (a as i16).wrapping_mul(Q_INVERSE);
    (a >> 16) as i16 - high(low, Q)
}

/// Returns the upper half of a product.
const fn high(a: i16, b: i16) -> i16 {
    ((a as i32 * b as i32) >> 16) as i16
}

/// Returns a modulo q, within ±q/2, for any a (Barrett).
const fn reduce(a: i16) -> i16 {
    /// 2²⁶/q, rounded.
    const RECIPROCAL: i16 = ((1 << 26) + Q as i32 / 2).div_euclid(Q as i32) as i16;
    let quotient = (high(a, RECIPROCAL) + (1 << 9)) >> 10;
    a.wrapping_sub(quotient.wrapping_mul(Q))
}

/// Computes the inverse by Newton's iteration: each step doubles the number of correct bits.
const fn inverse_of_q() -> i16 {
    let mut inverse = Q;
    let mut step = 0;
    while step < 4 {
        inverse = inverse.wrapping_mul(2_i16.wrapping_sub(Q.wrapping_mul(inverse)));
        step += 1;
    }
    inverse
}

/// Returns a·R modulo q, within ±q/2. For constants.
const fn montgomery(a: i32) -> i16 {
    centre(((a as i64) << 16).rem_euclid(Q as i64) as i32)
}

/// Returns a·b modulo q, within ±q/2. For constants.
const fn multiply_slow(a: i16, b: i16) -> i16 {
    centre((a as i32 * b as i32).rem_euclid(Q as i32))
}

const fn power(base: i16, exponent: u32) -> i16 {
    let (mut product, mut i) = (1, 0);
    while i < exponent {
        product = multiply_slow(product, base);
        i += 1;
    }
    product
}

const fn centre(a: i32) -> i16 {
    let a = a as i16;
    if a > Q / 2 { a - Q } else { a }
}

const fn zetas() -> [i16; 128] {
    let mut zetas = [0; 128];
    let mut i = 0;
    while i < zetas.len() {
        let exponent = (i as u8).reverse_bits() >> 1;
        zetas[i] = montgomery(power(17, exponent as u32) as i32);
        i += 1;
    }
    zetas
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Returns a modulo q, in [0, q).
    fn modulo(a: i64) -> i64 {
        a.rem_euclid(i64::from(Q))
    }

    #[test]
    fn every_number_is_reduced() {
        for a in i16::MIN..=i16::MAX {
            let reduced = reduce(a);
            assert!((-Q / 2..=Q / 2).contains(&reduced), "{a}: {reduced}");
            assert_eq!(modulo(reduced.into()), modulo(a.into()), "{a}");
        }
    }

    #[test]
    fn products_are_montgomerys() {
        for a in (i16::MIN..=i16::MAX).step_by(7) {
            for b in [1 - Q, -1665, -1, 0, 1, 17, 1664, Q - 1] {
                let product = multiply(a, b);
                assert!(product.abs() < Q, "{a}·{b} = {product}");
                assert_eq!(
                    modulo(i64::from(product) << 16),
                    modulo(i64::from(a) * i64::from(b)),
                    "{a}·{b}"
                );
                let wide = i32::from(a) * i32::from(b);
                assert_eq!(montgomery_reduce(wide), product, "{a}·{b}");
            }
        }
    }

    /// Returns the product by schoolbook multiplication, with X²⁵⁶ = −1.
    fn school(a: &Poly, b: &Poly) -> Vec<i64> {
        let mut product = vec![0; N];
        for i in 0..N {
            for j in 0..N {
                let term = i64::from(a.0[i]) * i64::from(b.0[j]);
                let sign = if i + j < N { 1 } else { -1 };
                product[(i + j) % N] += sign * term;
            }
        }
        product.into_iter().map(modulo).collect()
    }

    fn some(seed: u32) -> Poly {
        let mut state = seed;
        Poly(std::array::from_fn(|_| {
            state = state.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
            ((state >> 16) % u32::from(Q.unsigned_abs())) as i16
        }))
    }

    #[test]
    fn products_of_transforms_are_products_of_polynomials() {
        let extreme = |value| Poly([value; N]);
        let pairs = [
            (some(1), some(2)),
            (some(3), some(4)),
            (extreme(Q - 1), extreme(Q - 1)),
            (extreme(1 - Q), extreme(Q - 1)),
        ];
        for (a, b) in &pairs {
            let (mut left, mut right) = (a.clone(), b.clone());
            left.transform();
            right.transform();
            let mut product = inner_product([&left].into_iter(), &[Multiplicand::new(&right)]);
            product.invert_product();
            product.normalise();
            let product: Vec<_> = product.0.map(i64::from).to_vec();
            assert_eq!(product, school(a, b));
        }
    }

    #[test]
    fn the_largest_sum_of_products_fits() {
        let row = [const { Poly([Q - 1; N]) }; 4];
        let column = [(); 4].map(|()| Multiplicand {
            straight: [1 - Q; N],
            crossed: [Q - 1; N],
        });
        let product = inner_product(row.iter(), &column);
        let expected = modulo(8 * i64::from(Q - 1) * i64::from(Q - 1));
        for pair in product.0.chunks_exact(2) {
            assert_eq!(modulo(-(i64::from(pair[0]) << 16)), expected);
            assert_eq!(modulo(i64::from(pair[1]) << 16), expected);
        }
    }
}
