//! Exchanges tensors with torch through DLPack, the binary interface of array libraries (dmlc.github.io/dlpack).
//!
//! If torch supports DLPack 1.2, its fast function table `__dlpack_c_exchange_api__` is used. For older releases of
//! torch, the functions of `torch.utils.dlpack` are used instead.

use std::ffi::{CStr, c_char, c_int, c_void};
use std::mem::MaybeUninit;
use std::ptr::null_mut;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};

use once_cell::race::OnceBox;
use pyo3::exceptions::{PyException, PyMemoryError};
use pyo3::ffi;
use pyo3::intern;
use pyo3::prelude::*;
use pyo3::types::{PyCapsule, PyString};
use torchdata_core::link::lease::Lease;

use super::helpers::helpers;
use super::malformed;

const CPU: c_int = 1;

#[repr(C)]
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ElementType {
    pub code: u8,
    pub bits: u8,
    pub lanes: u16,
}

impl ElementType {
    const BFLOAT: u8 = 4;
    const COMPLEX: u8 = 5;

    pub fn size(self) -> Option<usize> {
        (self.lanes == 1 && self.bits > 0 && self.bits.is_multiple_of(8)).then_some(usize::from(self.bits / 8))
    }

    /// Returns whether torch supports lazy negation for elements of this type.
    fn has_lazy_sign(self) -> bool {
        const FLOAT: u8 = 2;
        matches!(self.code, FLOAT | Self::BFLOAT | Self::COMPLEX)
    }
}

#[repr(C)]
#[derive(Clone, Copy)]
struct Described {
    data: *mut c_void,
    device: [c_int; 2],
    dimensions: c_int,
    element: ElementType,
    shape: *mut i64,
    strides: *mut i64,
    byte_offset: u64,
}

#[repr(C)]
struct Managed {
    tensor: Described,
    context: *mut c_void,
    free: Option<unsafe extern "C" fn(*mut Managed)>,
}

#[repr(C)]
struct Versioned {
    version: [u32; 2],
    context: *mut c_void,
    free: Option<unsafe extern "C" fn(*mut Versioned)>,
    flags: u64,
    tensor: Described,
}

#[repr(C)]
struct ExchangeApi {
    version: [u32; 2],
    /// Three functions that the codec does not use.
    others: [usize; 3],
    object_of: unsafe extern "C" fn(*mut Versioned, *mut *mut ffi::PyObject) -> c_int,
    describe: Option<unsafe extern "C" fn(*mut ffi::PyObject, *mut Described) -> c_int>,
}

const MAJOR: u32 = 1;
/// Whether torch has failed to describe a tensor in this process, for example a sparse tensor. After such a failure,
/// each tensor's layout is checked before torch is called, because catching an exception takes a millisecond.
static HAS_REFUSED: AtomicBool = AtomicBool::new(false);
const UNUSED: &CStr = c"dltensor";

struct Torch {
    exchange: Option<&'static ExchangeApi>,
    to_capsule: Py<PyAny>,
    from_capsule: Py<PyAny>,
    strided: Py<PyAny>,
}

/// Returns torch's functions for DLPack, which are looked up once per process.
///
/// FORK: `OnceBox` uses no lock, so a fork during the look-up does no harm.
fn torch(py: Python<'_>) -> PyResult<&'static Torch> {
    static TORCH: OnceBox<Torch> = OnceBox::new();
    TORCH.get_or_try_init(|| {
        type Ways<'py> = (Option<Bound<'py, PyCapsule>>, Bound<'py, PyAny>, Bound<'py, PyAny>, Py<PyAny>);
        let (table, to_capsule, from_capsule, strided): Ways<'_> =
            helpers(py)?.dlpack_functions.bind(py).call0()?.extract()?;
        let exchange = match table {
            None => None,
            Some(capsule) => {
                let table = capsule.pointer_checked(Some(c"dlpack_exchange_api"))?.cast::<ExchangeApi>();
                std::mem::forget(capsule);
                // SAFETY: DLPack specifies that a capsule with this name contains an exchange table, which exists until
                // the process exits. The version is the first field in all versions of the table.
                unsafe { (table.cast::<u32>().read() == MAJOR).then_some(table.as_ref()) }
            }
        };
        Ok(Box::new(Torch {
            exchange: exchange.filter(|exchange| exchange.describe.is_some()),
            to_capsule: to_capsule.unbind(),
            from_capsule: from_capsule.unbind(),
            strided,
        }))
    })
}

/// A tensor in this process's memory, with at least one element and no state besides its elements.
pub struct Exported<'py> {
    tensor: Described,
    item: Bound<'py, PyAny>,
    pub size: usize,
    _capsule: Option<Bound<'py, PyAny>>,
}

impl<'py> Exported<'py> {
    /// Returns None if the tensor has state besides its elements, or if its elements cannot be sent as plain bytes.
    pub fn of(item: &Bound<'py, PyAny>) -> PyResult<Option<Self>> {
        let py = item.py();
        let torch = torch(py)?;
        if (HAS_REFUSED.load(Relaxed) && !item.getattr(intern!(py, "layout"))?.is(&torch.strided))
            || item.getattr(intern!(py, "requires_grad"))?.is_truthy()?
            || has_attributes(item)?
        {
            return Ok(None);
        }
        let Some((tensor, capsule)) = torch.describe(item)? else { return Ok(None) };
        let Some(size) = tensor.element.size() else { return Ok(None) };
        let exported = Self { tensor, item: item.clone(), size, _capsule: capsule };
        let plain = tensor.device[0] == CPU
            && !tensor.data.is_null()
            && !tensor.strides.is_null()
            && exported.shape().iter().all(|&count| count > 0)
            && !exported.has_lazy_bits()?
            && exported.is_within_storage()?;
        Ok(plain.then_some(exported))
    }

    pub fn element(&self) -> ElementType {
        self.tensor.element
    }

    pub fn shape(&self) -> &[i64] {
        self.extents(self.tensor.shape)
    }

    fn extents(&self, of: *const i64) -> &[i64] {
        if self.tensor.dimensions == 0 {
            return &[]; // DLPack's pointers may be null if a tensor has no dimensions
        }
        // SAFETY: the shape and the strides have one entry per dimension. The tensor or its capsule keeps the shape and
        // the strides alive.
        unsafe { std::slice::from_raw_parts(of, self.tensor.dimensions as usize) }
    }

    pub fn data(&self) -> *const u8 {
        self.tensor.data.cast_const().cast::<u8>().wrapping_add(self.tensor.byte_offset as usize)
    }

    pub fn len(&self) -> usize {
        self.shape().iter().fold(self.size, |len, &count| len.saturating_mul(count as usize))
    }

    pub fn reach(&self) -> usize {
        let strides = self.extents(self.tensor.strides);
        reach(self.size, self.shape(), strides).unwrap_or(usize::MAX)
    }

    pub fn is_contiguous(&self) -> bool {
        let mut next = 1_i64;
        self.shape().iter().zip(self.extents(self.tensor.strides)).rev().all(|(&count, &stride)| {
            let fits = count == 1 || stride == next;
            next = next.saturating_mul(count);
            fits
        })
    }

    /// Returns the strides that torch reports. DLPack may report other strides for dimensions with one element.
    pub fn strides(&self) -> PyResult<Vec<i64>> {
        self.item.call_method0(intern!(self.item.py(), "stride"))?.extract()
    }

    /// Returns whether the values of the tensor differ from its bytes, because torch has conjugated or negated the
    /// tensor lazily.
    fn has_lazy_bits(&self) -> PyResult<bool> {
        let (py, element) = (self.item.py(), self.tensor.element);
        let is = |name: &Bound<'py, PyString>| self.item.call_method0(name)?.is_truthy();
        Ok(element.has_lazy_sign() && is(intern!(py, "is_neg"))?
            || element.code == ElementType::COMPLEX && is(intern!(py, "is_conj"))?)
    }

    fn is_within_storage(&self) -> PyResult<bool> {
        let py = self.item.py();
        let storage = self.item.call_method0(intern!(py, "untyped_storage"))?;
        let there: usize = storage.call_method0(intern!(py, "nbytes"))?.extract()?;
        let reach = self.reach();
        if there < reach {
            return Ok(false);
        }
        let offset: usize = self.item.call_method0(intern!(py, "storage_offset"))?.extract()?;
        let begins = offset.checked_mul(self.size);
        Ok(begins.and_then(|begins| begins.checked_add(reach)).is_some_and(|end| end <= there))
    }
}

/// Returns the number of bytes in memory from the first to the last element, or None if this number overflows.
pub fn reach(size: usize, shape: &[i64], strides: &[i64]) -> Option<usize> {
    let last = shape.iter().zip(strides).try_fold(0_usize, |last, (&count, &stride)| {
        let steps = usize::try_from(count).ok()?.checked_sub(1)?;
        last.checked_add(steps.checked_mul(usize::try_from(stride).ok()?)?)
    });
    last?.checked_add(1)?.checked_mul(size)
}

fn has_attributes(item: &Bound<'_, PyAny>) -> PyResult<bool> {
    // SAFETY: callers pass tensors, and every tensor has a dictionary. PyObject_GenericGetDict returns a new reference,
    // or NULL with an exception set.
    unsafe {
        let dict = ffi::PyObject_GenericGetDict(item.as_ptr(), null_mut());
        let dict = Bound::from_owned_ptr_or_err(item.py(), dict)?;
        Ok(ffi::PyDict_Size(dict.as_ptr()) != 0)
    }
}

impl Torch {
    /// Returns DLPack's description of a tensor, and the capsule (if any) that keeps the description valid. Returns
    /// None if torch cannot describe the tensor.
    fn describe<'py>(&self, item: &Bound<'py, PyAny>) -> PyResult<Option<(Described, Option<Bound<'py, PyAny>>)>> {
        let py = item.py();
        if let Some(describe) = self.exchange.and_then(|exchange| exchange.describe) {
            let mut described = MaybeUninit::uninit();
            // SAFETY: `describe` is in the function table of the class of `item`. The function writes the description
            // and returns 0, or returns -1 with an exception set.
            return unsafe {
                if describe(item.as_ptr(), described.as_mut_ptr()) == 0 {
                    Ok(Some((described.assume_init(), None)))
                } else {
                    none_of(py, PyErr::fetch(py))
                }
            };
        }
        let capsule = match self.to_capsule.bind(py).call1((item,)) {
            Ok(capsule) => capsule,
            Err(error) => return none_of(py, error),
        };
        let managed = capsule.cast::<PyCapsule>()?.pointer_checked(Some(UNUSED))?.cast::<Managed>();
        // SAFETY: DLPack specifies that a capsule with this name contains a `Managed`.
        let described = unsafe { managed.as_ref().tensor };
        Ok(Some((described, Some(capsule))))
    }
}

fn none_of<T>(py: Python<'_>, error: PyErr) -> PyResult<Option<T>> {
    HAS_REFUSED.store(true, Relaxed);
    if error.is_instance_of::<PyException>(py) { Ok(None) } else { Err(error) }
}

pub enum Memory {
    Leased(Arc<Lease>),
    Own(Vec<u128>),
}

pub fn own_memory(len: usize) -> PyResult<Vec<u128>> {
    let mut words = Vec::new();
    let room = words.try_reserve_exact(len.div_ceil(size_of::<u128>()));
    room.map_err(|_| PyMemoryError::new_err(format!("there is no memory for a tensor of {len} bytes")))?;
    Ok(words)
}

/// The owner of the memory of a decoded tensor. Torch calls `free`, in any thread, once no tensor uses the memory.
#[repr(C)]
struct Home<M> {
    managed: M,
    extents: Vec<i64>,
    _memory: Memory,
}

impl<M> Home<M> {
    /// # Safety
    /// `leave` returned `managed`, and no code uses `managed` after this call.
    unsafe extern "C" fn free(managed: *mut M) {
        // SAFETY: the caller passes a pointer from `leave`. The pointer is the address of a boxed `Home`, because
        // `managed` is the first field of `Home`.
        drop(unsafe { Box::from_raw(managed.cast::<Self>()) });
    }

    fn leave(self) -> *mut M {
        Box::into_raw(Box::new(self)).cast()
    }
}

/// Creates a tensor in `memory`. `extents` contains the shape, followed by the strides in elements.
pub fn tensor_over<'py>(
    py: Python<'py>,
    element: ElementType,
    mut extents: Vec<i64>,
    mut memory: Memory,
) -> PyResult<Bound<'py, PyAny>> {
    let data = match &mut memory {
        Memory::Leased(lease) => lease.as_mut_ptr(),
        Memory::Own(own) => own.as_mut_ptr().cast(),
    };
    let dimensions = extents.len() / 2;
    let shape = extents.as_mut_ptr(); // the pointer stays valid, because moving a vector does not move its elements
    let strides = shape.wrapping_add(dimensions);
    let dimensions = c_int::try_from(dimensions).map_err(|_| malformed())?;
    let tensor = Described { data: data.cast(), device: [CPU, 0], dimensions, element, shape, strides, byte_offset: 0 };
    let torch = torch(py)?;
    let context = null_mut();
    if let Some(exchange) = torch.exchange {
        let managed = Versioned { version: [MAJOR, 0], context, free: Some(Home::<Versioned>::free), flags: 0, tensor };
        let managed = Home { managed, extents, _memory: memory }.leave();
        let mut object = null_mut();
        // SAFETY: torch takes ownership of `managed` even if the call fails. If the call fails, an exception is set.
        return unsafe {
            if (exchange.object_of)(managed, &mut object) == 0 {
                Bound::from_owned_ptr_or_err(py, object)
            } else {
                Err(PyErr::fetch(py))
            }
        };
    }
    let managed =
        Home { managed: Managed { tensor, context, free: Some(Home::<Managed>::free) }, extents, _memory: memory }
            .leave();
    // SAFETY: PyCapsule_New returns a new capsule, or NULL with an exception set. Torch renames the capsule when torch
    // takes ownership of the tensor. If torch fails before renaming the capsule, this function frees the tensor.
    unsafe {
        let capsule = ffi::PyCapsule_New(managed.cast(), UNUSED.as_ptr(), None);
        let Ok(capsule) = Bound::from_owned_ptr_or_err(py, capsule) else {
            Home::free(managed);
            return Err(PyErr::fetch(py));
        };
        let made = torch.from_capsule.bind(py).call1((&capsule,));
        if made.is_err() && ffi::PyCapsule_IsValid(capsule.as_ptr(), UNUSED.as_ptr().cast::<c_char>()) != 0 {
            Home::free(managed);
        }
        made
    }
}
