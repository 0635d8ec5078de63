//! The published variants, with their published figures.

use crate::fujioka::KeyPair;
use crate::handshake::{End, Random};
use crate::pke::{KYBER768, Parameters, TKYBER512};
use taupe_crypto::{KemParameters, Provider, Secret};

/// A published handshake.
///
/// **For comparison only.**
pub struct Variant {
    /// Its published name.
    pub name: &'static str,
    /// Description of its keys.
    pub meaning: &'static str,
    /// Its published figures.
    pub published: Published,
    /// A warning to print beside each of its figures.
    pub warning: Option<&'static str>,
    make: fn(&'static Provider, Random<'_>) -> Option<[End; 2]>,
}

/// Figures of the post and of the published program.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Published {
    /// Bytes of traffic, as printed in the post.
    pub traffic: usize,
    /// Bytes of an initiation and of a response in the program's layout. Their sum does not always
    /// equal the printed one.
    pub messages: [usize; 2],
    /// IPv6 packets.
    pub packets: usize,
    /// Milliseconds to make an initiation and process the response.
    pub client: f64,
    /// Milliseconds to process an initiation and make the response.
    pub server: f64,
}

impl Variant {
    /// Creates two ends that know each other, with keys made from `random`. Rainbow's keys use its
    /// library's own randomness, and take a second or, at level III, about ten. `None` for a
    /// variant with Rainbow if the crate lacks the feature `rainbow` or there is not enough memory
    /// for its keys.
    pub fn ends(&self, crypto: &'static Provider, random: Random<'_>) -> Option<[End; 2]> {
        (self.make)(crypto, random)
    }
}

/// The attack was carried out on the lowest level of Rainbow's second round; the paper improves on
/// earlier attacks for every submitted level.
const RAINBOW_IS_BROKEN: &str =
    "Rainbow: key recovery in 53 hours on a laptop (Beullens 2022, eprint 2022/214)";

/// All variants in the order of the post.
///
/// The printed 4816 B of traffic include an IPv6 and a UDP header, 48 B, for each of four packets;
/// 3760, 1912 and 1716 B are payload only. For K512+tK512, the post prints 3172 B, but the program
/// sends 3120. tK means tK512 in every row: no other set gives the printed sizes.
pub const VARIANTS: &[Variant] = &[
    Variant {
        name: "K+K",
        meaning: "long-term and ephemeral Kyber-768",
        published: Published {
            traffic: 4816,
            messages: [2388, 2236],
            packets: 4,
            client: 0.64,
            server: 0.43,
        },
        warning: None,
        make: |crypto, random| fujioka(crypto, random, KemParameters::MlKem768, KYBER768),
    },
    Variant {
        name: "K+tK",
        meaning: "long-term Kyber-768, ephemeral tweaked Kyber-512",
        published: Published {
            traffic: 3760,
            messages: [2004, 1756],
            packets: 4,
            client: 0.50,
            server: 0.29,
        },
        warning: None,
        make: |crypto, random| fujioka(crypto, random, KemParameters::MlKem768, TKYBER512),
    },
    Variant {
        name: "R+tK",
        meaning: "Rainbow III, ephemeral tweaked Kyber-512",
        published: Published {
            traffic: 1912,
            messages: [1080, 832],
            packets: 2,
            client: 5.76,
            server: 5.41,
        },
        warning: Some(RAINBOW_IS_BROKEN),
        #[cfg(feature = "rainbow")]
        make: |crypto, _| crate::rainbow::RainbowIii::ends(crypto),
        #[cfg(not(feature = "rainbow"))]
        make: |_, _| None,
    },
    Variant {
        name: "K512+tK512",
        meaning: "long-term Kyber-512, ephemeral tweaked Kyber-512",
        published: Published {
            traffic: 3172,
            messages: [1684, 1436],
            packets: 4,
            client: 0.39,
            server: 0.27,
        },
        warning: None,
        make: |crypto, random| fujioka(crypto, random, KemParameters::MlKem512, TKYBER512),
    },
    Variant {
        name: "R1+tK512",
        meaning: "Rainbow I, ephemeral tweaked Kyber-512",
        published: Published {
            traffic: 1716,
            messages: [982, 734],
            packets: 2,
            client: 4.40,
            server: 4.31,
        },
        warning: Some(RAINBOW_IS_BROKEN),
        #[cfg(feature = "rainbow")]
        make: |crypto, _| crate::rainbow::RainbowI::ends(crypto),
        #[cfg(not(feature = "rainbow"))]
        make: |_, _| None,
    },
];

fn fujioka(
    crypto: &'static Provider,
    random: Random<'_>,
    parameters: KemParameters,
    ephemeral: Parameters,
) -> Option<[End; 2]> {
    let mut generate = || {
        let mut seed = Secret::zeroed();
        random(seed.expose_mut());
        KeyPair::new(crypto, parameters, &seed)
    };
    let (one, other) = (generate(), generate());
    let publics = [other.public().to_vec(), one.public().to_vec()];
    let [one, other] = [(one, &publics[0]), (other, &publics[1])].map(|(local, remote)| {
        let fujioka = local.with(remote).expect("a public key just made is valid");
        End::new(crypto, ephemeral, Box::new(fujioka), None)
    });
    Some([one, other])
}
