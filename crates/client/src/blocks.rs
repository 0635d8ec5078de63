//! Reading an answer with limits on its size and its time.

use std::io::{self, Read};
use std::time::{Duration, Instant};

use zeroize::Zeroizing;

/// Bytes read or written at a time.
pub(crate) const BLOCK: usize = 64 << 10;

/// Limits of an answer.
struct Limits {
    /// Bytes, at most.
    bytes: u64,
    /// Time from its first byte, to which that for its bytes is added.
    patience: Duration,
    /// Bytes per second of the slowest answer.
    slowest: u64,
}

/// Enough for the largest number of peers.
const LIMITS: Limits = Limits {
    bytes: 1 << 30,
    patience: Duration::from_secs(30),
    slowest: 1 << 20,
};

/// Reads an answer in blocks, which are erased, until `take` returns true or the connection ends.
///
/// # Errors
/// Those of `take` and of the stream; an error without a code of the system if the answer has more than
/// 1 GiB, or takes more than 30 s and a second for each MiB.
pub fn read_blocks<E: From<io::Error>>(
    stream: &mut impl Read,
    take: impl FnMut(&[u8]) -> Result<bool, E>,
) -> Result<(), E> {
    read_within(&LIMITS, stream, take)
}

fn read_within<E: From<io::Error>>(
    limits: &Limits,
    stream: &mut impl Read,
    mut take: impl FnMut(&[u8]) -> Result<bool, E>,
) -> Result<(), E> {
    let mut block = Zeroizing::new(vec![0; BLOCK]);
    let mut began = None;
    let mut total = 0;
    loop {
        let length = match stream.read(&mut block) {
            Err(error) if error.kind() == io::ErrorKind::Interrupted => continue,
            length => length?,
        };
        let bytes = block.get(..length).unwrap_or_default();
        if bytes.is_empty() || take(bytes)? {
            return Ok(());
        }
        total += bytes.len() as u64;
        let began = *began.get_or_insert_with(Instant::now);
        let longest = limits.patience + Duration::from_secs(total / limits.slowest);
        if total > limits.bytes || began.elapsed() > longest {
            return Err(io::Error::other("the answer is too long or too slow").into());
        }
    }
}

#[cfg(test)]
mod tests {
    use super::{BLOCK, Limits, read_within};
    use std::io::{self, Read};
    use std::thread;
    use std::time::Duration;

    const PATIENCE: Duration = Duration::from_millis(200);

    /// Reads to the end, and returns the number of bytes.
    fn read(mut stream: impl Read, bytes: usize) -> Result<usize, String> {
        let limits = Limits {
            bytes: bytes as u64,
            patience: PATIENCE,
            slowest: 1 << 20,
        };
        let mut count = 0;
        let result = read_within(&limits, &mut stream, |block| {
            count += block.len();
            Ok::<_, io::Error>(false)
        });
        result.map(|()| count).map_err(|error| error.to_string())
    }

    /// A stream that sends a byte now and then, and never ends.
    struct Trickle;

    impl Read for Trickle {
        fn read(&mut self, block: &mut [u8]) -> io::Result<usize> {
            thread::sleep(PATIENCE / 20);
            io::repeat(b'x').take(1).read(block)
        }
    }

    #[test]
    fn an_answer_ends() {
        let does_not = Err("the answer is too long or too slow".to_owned());
        assert_eq!(read(io::repeat(b'x').take(7), BLOCK), Ok(7));
        assert_eq!(read(io::repeat(b'x'), BLOCK), does_not);
        assert_eq!(read(Trickle, BLOCK), does_not);
    }
}
