//! What is done to bytes on their way, or found out about them.
//!
//! A cipher for the way between nodes is another one of these, beside [`Seal`]: in front of the target where it encrypts, first of all
//! where it decrypts.

use crate::TransferError;
use crate::pace::Pace;
use crate::pipeline::{Rest, Stage};
use mend_image::verify::{Verified, Verifier};
use mend_messages::tier::ImageRef;
use mend_sealed::{HEAD, Key, PieceOpener, Sealer, opened_by};
use tokio::sync::oneshot;
use xxhash_rust::xxh3::Xxh3;

/// Refuses what is not exactly so long.
#[derive(Debug)]
pub struct Length {
    wanted: u64,
    found: u64,
}

impl Length {
    /// So many bytes.
    #[must_use]
    pub fn new(wanted: u64) -> Self {
        Self { wanted, found: 0 }
    }
}

impl Stage for Length {
    fn pass(&mut self, piece: &[u8], rest: &mut Rest<'_, '_>) -> Result<(), TransferError> {
        self.found += piece.len() as u64;
        if self.found > self.wanted {
            return Err(TransferError::Longer { most: self.wanted });
        }
        rest.give(piece)
    }

    fn end(&mut self, _: &mut Rest<'_, '_>) -> Result<(), TransferError> {
        let Self { wanted, found } = *self;
        if found < wanted { Err(TransferError::Torn { found, wanted }) } else { Ok(()) }
    }
}

/// Lets bytes pass as fast as a pace allows.
#[derive(Debug)]
pub struct Paced<'a>(pub &'a Pace);

impl Stage for Paced<'_> {
    fn pass(&mut self, piece: &[u8], rest: &mut Rest<'_, '_>) -> Result<(), TransferError> {
        self.0.spend(piece.len())?;
        rest.give(piece)
    }
}

/// At the end, waits for the word of whoever wrote the source, and compares: so many bytes. Without a word nobody wants it.
#[derive(Debug)]
pub struct Agreed {
    word: Option<oneshot::Receiver<u64>>,
    found: u64,
}

impl Agreed {
    /// The word will come here.
    #[must_use]
    pub fn new(word: oneshot::Receiver<u64>) -> Self {
        Self { word: Some(word), found: 0 }
    }
}

impl Stage for Agreed {
    fn pass(&mut self, piece: &[u8], rest: &mut Rest<'_, '_>) -> Result<(), TransferError> {
        self.found += piece.len() as u64;
        rest.give(piece)
    }

    fn end(&mut self, _: &mut Rest<'_, '_>) -> Result<(), TransferError> {
        let word = self.word.take().and_then(|word| word.blocking_recv().ok());
        let (found, expected) = (self.found, word.ok_or(TransferError::Cancelled)?);
        if found == expected { Ok(()) } else { Err(TransferError::Short { found, expected }) }
    }
}

/// Encrypts as files are at rest.
pub struct Seal(Option<Sealer<Vec<u8>>>);

impl Seal {
    /// With this key.
    ///
    /// # Errors
    /// None in practice: those of writing to memory.
    pub fn new(key: &Key) -> Result<Self, TransferError> {
        Ok(Self(Some(Sealer::new(Vec::new(), key, mend_wire::random_bytes())?)))
    }
}

impl Stage for Seal {
    fn pass(&mut self, piece: &[u8], rest: &mut Rest<'_, '_>) -> Result<(), TransferError> {
        let Some(sealer) = &mut self.0 else { return Ok(()) };
        std::io::Write::write_all(sealer, piece)?;
        let sealed = sealer.output();
        rest.give(sealed)?;
        sealed.clear();
        Ok(())
    }

    fn end(&mut self, rest: &mut Rest<'_, '_>) -> Result<(), TransferError> {
        let Some(sealer) = self.0.take() else { return Ok(()) };
        rest.give(&sealer.finish()?.0)
    }
}

/// Refuses content with another length or checksum.
pub struct Checksum {
    size: u64,
    /// `None`: only the length counts.
    checksum: Option<u64>,
    found: u64,
    sum: Xxh3,
}

impl Checksum {
    /// So many bytes with this xxh3-64.
    #[must_use]
    pub fn new(size: u64, checksum: Option<u64>) -> Self {
        Self { size, checksum, found: 0, sum: Xxh3::new() }
    }
}

impl Stage for Checksum {
    fn pass(&mut self, piece: &[u8], rest: &mut Rest<'_, '_>) -> Result<(), TransferError> {
        self.found += piece.len() as u64;
        self.sum.update(piece);
        rest.give(piece)
    }

    fn end(&mut self, _: &mut Rest<'_, '_>) -> Result<(), TransferError> {
        let good = self.found == self.size && self.checksum.is_none_or(|checksum| checksum == self.sum.digest());
        if good { Ok(()) } else { Err(TransferError::OtherContent) }
    }
}

/// What an image has to be.
#[derive(Clone, Debug)]
pub struct Expected {
    /// The job's identity.
    pub job: [u8; 16],
    /// The image.
    pub image: ImageRef,
    /// With a key it must be encrypted with this, without one it must not be.
    pub key: Option<Key>,
}

impl Expected {
    fn matches(&self, verified: &Verified) -> bool {
        let (Verified { header, end }, image) = (verified, &self.image);
        header.job == self.job && header.rank == image.rank && header.id == image.id.0 && end.stream == image.checksum
    }
}

/// Sees that what passes is the image that was meant: every checksum of it, and what it is of. An encrypted one passes as it is, and is
/// opened to be looked at.
pub struct ImageCheck<'a> {
    expected: &'a Expected,
    /// Until it is known whether it is encrypted.
    head: Vec<u8>,
    form: Option<Form>,
    verifier: Verifier,
}

/// How it is stored.
enum Form {
    Plain,
    Sealed(Box<PieceOpener>),
}

impl<'a> ImageCheck<'a> {
    /// It has to be this.
    #[must_use]
    pub fn new(expected: &'a Expected) -> Self {
        Self { expected, head: Vec::with_capacity(HEAD), form: None, verifier: Verifier::new() }
    }

    fn look(&mut self, mut piece: &[u8]) -> Result<(), TransferError> {
        if self.form.is_none() {
            let (now, later) = piece.split_at(piece.len().min(HEAD - self.head.len()));
            self.head.extend_from_slice(now);
            if self.head.len() < HEAD {
                return Ok(());
            }
            self.decide()?;
            piece = later;
        }
        self.feed(piece)
    }

    fn decide(&mut self) -> Result<(), TransferError> {
        let key = opened_by(&self.head, self.expected.key.as_ref()).map_err(TransferError::Sealed)?;
        self.form = Some(key.map_or(Form::Plain, |key| Form::Sealed(Box::new(PieceOpener::new(key.clone())))));
        let head = std::mem::take(&mut self.head);
        self.feed(&head)
    }

    fn feed(&mut self, piece: &[u8]) -> Result<(), TransferError> {
        let verifier = &mut self.verifier;
        match &mut self.form {
            Some(Form::Sealed(opener)) => opener.feed(piece, &mut |plain| verifier.feed(plain).map_err(Fault::Image)).map_err(Fault::tell),
            _ => verifier.feed(piece).map_err(TransferError::Damaged),
        }
    }
}

/// What is wrong with an encrypted image: outside or inside.
enum Fault {
    Seal(mend_sealed::SealError),
    Image(mend_image::ImageError),
}

impl From<mend_sealed::SealError> for Fault {
    fn from(error: mend_sealed::SealError) -> Self {
        Self::Seal(error)
    }
}

impl Fault {
    fn tell(self) -> TransferError {
        match self {
            Self::Seal(error) => TransferError::Sealed(error),
            Self::Image(error) => TransferError::Damaged(error),
        }
    }
}

impl Stage for ImageCheck<'_> {
    fn pass(&mut self, piece: &[u8], rest: &mut Rest<'_, '_>) -> Result<(), TransferError> {
        self.look(piece)?;
        rest.give(piece)
    }

    fn end(&mut self, _: &mut Rest<'_, '_>) -> Result<(), TransferError> {
        if self.form.is_none() {
            self.decide()?;
        }
        let verifier = &mut self.verifier;
        if let Some(Form::Sealed(opener)) = &mut self.form {
            opener.finish(&mut |plain| verifier.feed(plain).map_err(Fault::Image)).map_err(Fault::tell)?;
        }
        let verified = self.verifier.finish().map_err(TransferError::Damaged)?;
        if self.expected.matches(&verified) { Ok(()) } else { Err(TransferError::OtherImage) }
    }
}
