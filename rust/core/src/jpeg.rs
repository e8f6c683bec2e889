//! Decodes parts of JPEG images with libjpeg-turbo, which skips the pixels outside the part.
//!
//! The feature `turbojpeg` compiles this module. Without the feature, simplejpeg decodes whole images.

use std::ffi::c_int;

use turbojpeg_sys as turbo;

struct Decoder(turbo::tjhandle);

impl Drop for Decoder {
    fn drop(&mut self) {
        // SAFETY: the handle is valid or null, and is not used afterwards.
        unsafe { turbo::tj3Destroy(self.0) };
    }
}

thread_local! {
    // SAFETY: any thread may call this function, which returns null if there is not enough memory.
    static DECODER: Decoder = Decoder(unsafe { turbo::tj3Init(turbo::TJINIT_TJINIT_DECOMPRESS as c_int) });
}

/// Decodes a part of an image into `out`, row by row without gaps. Returns false if the image is damaged, or if the decoder
/// cannot decode this part.
///
/// # Arguments
/// * `part` - the left edge, the top edge, the width and the height in pixels of the reduced image.
/// * `reduction` - how much smaller the decoder makes the image: by a factor of 1, 2, 4 or 8.
/// * `channels` - 3 for RGB, 1 for gray.
pub fn decode_part(content: &[u8], part: [u32; 4], reduction: u32, channels: u32, out: &mut [u8]) -> bool {
    let [x, y, w, h] = part.map(|number| number as c_int);
    let factor = turbo::tjscalingfactor { num: 1, denom: reduction as c_int };
    let format = if channels == 1 { turbo::TJPF_TJPF_GRAY } else { turbo::TJPF_TJPF_RGB };
    let (data, length) = (content.as_ptr(), content.len() as _);
    let needed = u64::from(part[2]) * u64::from(part[3]) * u64::from(channels);
    let has_room = needed > 0 && needed <= out.len() as u64; // the decoder takes a width of 0 for the rest of the image
    // SAFETY: if the handle is null, the decoder returns an error. `content` is readable, and `out` has room for `h` rows
    // of `w` pixels, which follow each other without gaps (the pitch 0). If a setting is refused, nothing is decoded.
    DECODER.with(|&Decoder(handle)| unsafe {
        has_room
            && turbo::tj3DecompressHeader(handle, data, length) == 0
            && turbo::tj3SetScalingFactor(handle, factor) == 0
            && turbo::tj3SetCroppingRegion(handle, turbo::tjregion { x, y, w, h }) == 0
            && turbo::tj3Decompress8(handle, data, length, out.as_mut_ptr(), 0, format as c_int) == 0
    })
}
