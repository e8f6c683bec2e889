//! Decodes parts of JPEG images with libjpeg-turbo, which skips the pixels outside the part.
//!
//! The feature `turbojpeg` compiles this module. Without the feature, simplejpeg decodes whole images.

use std::ffi::c_int;

use turbojpeg_sys as turbo;

/// A part of a decoded image, in pixels.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Part {
    pub left: u32,
    pub top: u32,
    pub width: u32,
    pub height: u32,
}

/// The width and height of the blocks (MCUs) that JPEG encodes together, for each kind of chroma subsampling in the order of
/// `TJSAMP`.
const BLOCKS: [(u32, u32); 7] = [(8, 8), (16, 8), (16, 16), (8, 8), (8, 16), (32, 8), (8, 32)];

struct Decoder(turbo::tjhandle);

impl Drop for Decoder {
    fn drop(&mut self) {
        // SAFETY: the handle is valid or null, and is not used afterwards.
        unsafe { turbo::tj3Destroy(self.0) };
    }
}

thread_local! {
    // SAFETY: the call has no preconditions, and returns null if there is not enough memory.
    static DECODER: Decoder = Decoder(unsafe { turbo::tj3Init(turbo::TJINIT_TJINIT_DECOMPRESS as c_int) });
}

/// Decodes at least the part `wanted` of an image into `out`, row by row without gaps.
///
/// # Arguments
/// * `wanted` - a part of the image in its reduced size.
/// * `reduction` - the factor by which the decoder reduces the image: 1, 2, 4 or 8.
/// * `channels` - 3 for RGB, 1 for gray.
/// * `out` - the buffer for the pixels, which needs at most the length of the whole reduced image.
///
/// Returns the decoded part, or None if the image is damaged or the decoder cannot decode parts of the image. The pixels
/// are those that a decoder of the whole image produces, because the decoded part is larger than `wanted` by one block
/// on each side.
pub fn decode_part(content: &[u8], wanted: Part, reduction: u32, channels: usize, out: &mut [u8]) -> Option<Part> {
    DECODER.with(|decoder| decode_by(decoder.0, content, wanted, reduction, channels, out))
}

fn decode_by(
    handle: turbo::tjhandle,
    content: &[u8],
    wanted: Part,
    reduction: u32,
    channels: usize,
    out: &mut [u8],
) -> Option<Part> {
    let get = |name: turbo::TJPARAM| {
        // SAFETY: the handle is valid or null, which is an error.
        u32::try_from(unsafe { turbo::tj3Get(handle, name as c_int) }).ok()
    };
    let length = content.len() as _;
    // SAFETY: the handle is valid or null, which is an error, and `content` is readable.
    if unsafe { turbo::tj3DecompressHeader(handle, content.as_ptr(), length) } != 0 {
        return None;
    }
    let scaled = |size: u32| size.div_ceil(reduction);
    let width = scaled(get(turbo::TJPARAM_TJPARAM_JPEGWIDTH)?);
    let height = scaled(get(turbo::TJPARAM_TJPARAM_JPEGHEIGHT)?);
    let &(across, down) = BLOCKS.get(get(turbo::TJPARAM_TJPARAM_SUBSAMP)? as usize)?;
    let part = with_margin(wanted, (scaled(across), scaled(down)), (width, height))?;
    if part.width as usize * part.height as usize * channels > out.len() {
        return None;
    }
    let factor = turbo::tjscalingfactor { num: 1, denom: reduction as c_int };
    let [x, y, w, h] = [part.left, part.top, part.width, part.height].map(|number| number as c_int);
    let format = if channels == 1 { turbo::TJPF_TJPF_GRAY } else { turbo::TJPF_TJPF_RGB };
    // SAFETY: `content` is readable, and `out` has room for `h` rows of `w` pixels, which follow each other without gaps
    // (the pitch 0). If a setting is refused, nothing is decoded.
    let decoded = unsafe {
        turbo::tj3SetScalingFactor(handle, factor) == 0
            && turbo::tj3SetCroppingRegion(handle, turbo::tjregion { x, y, w, h }) == 0
            && turbo::tj3Decompress8(handle, content.as_ptr(), length, out.as_mut_ptr(), 0, format as c_int) == 0
    };
    decoded.then_some(part)
}

/// Extends a part by one block on each side, as far as the image reaches. The left edge becomes a multiple of the width of
/// a block, as the decoder requires.
fn with_margin(wanted: Part, (across, down): (u32, u32), (width, height): (u32, u32)) -> Option<Part> {
    let right = wanted.left.checked_add(wanted.width)?.checked_add(across)?.min(width);
    let bottom = wanted.top.checked_add(wanted.height)?.checked_add(down)?.min(height);
    let left = (wanted.left / across * across).saturating_sub(across);
    let top = wanted.top.saturating_sub(down);
    let part = Part { left, top, width: right.checked_sub(left)?, height: bottom.checked_sub(top)? };
    (part.width > 0 && part.height > 0).then_some(part)
}
