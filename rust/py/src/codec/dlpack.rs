//! Tensors out of torch and into it by DLPack, the binary interface of array libraries (dmlc.github.io/dlpack).
//!
//! Where torch has the table of functions that DLPack 1.2 names `__dlpack_c_exchange_api__`, a tensor is described
//! without an object of its own, and one is made without a capsule. Older releases have `torch.utils.dlpack` alone. Both
//! are public, and give the same tensors.

use std::ffi::{CStr, c_char, c_int, c_void};
use std::mem::MaybeUninit;
use std::ptr::null_mut;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};

use once_cell::race::OnceBox;
use pyo3::exceptions::{PyException, PyMemoryError};
use pyo3::ffi;
use pyo3::prelude::*;
use pyo3::types::{PyCapsule, PyString};
use torchdata_core::link::lease::Lease;

use super::helpers::helpers;
use super::malformed;

/// Memory of the processor.
const CPU: c_int = 1;

/// The type of an element.
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

    /// Bytes of an element; None if elements do not lie at multiples of a byte.
    pub fn size(self) -> Option<usize> {
        (self.lanes == 1 && self.bits > 0 && self.bits.is_multiple_of(8)).then_some(usize::from(self.bits / 8))
    }

    fn is_complex(self) -> bool {
        self.code == Self::COMPLEX
    }

    /// Whether torch may put off a change of sign: the imaginary part of a conjugate is a real number.
    fn has_lazy_sign(self) -> bool {
        const FLOAT: u8 = 2;
        matches!(self.code, FLOAT | Self::BFLOAT | Self::COMPLEX)
    }
}

/// `DLTensor`.
#[repr(C)]
#[derive(Clone, Copy)]
struct Described {
    data: *mut c_void,
    /// The kind of its memory, and the number of the device among those of the kind.
    device: [c_int; 2],
    dimensions: c_int,
    element: ElementType,
    shape: *mut i64,
    strides: *mut i64,
    byte_offset: u64,
}

/// `DLManagedTensor`: that of a capsule.
#[repr(C)]
struct Managed {
    tensor: Described,
    context: *mut c_void,
    free: Option<unsafe extern "C" fn(*mut Managed)>,
}

/// `DLManagedTensorVersioned`.
#[repr(C)]
struct Versioned {
    version: [u32; 2],
    context: *mut c_void,
    free: Option<unsafe extern "C" fn(*mut Versioned)>,
    flags: u64,
    tensor: Described,
}

/// `DLPackExchangeAPI`.
#[repr(C)]
struct ExchangeApi {
    version: [u32; 2],
    /// Where an older table is, and two functions, of no use here.
    others: [usize; 3],
    object_of: unsafe extern "C" fn(*mut Versioned, *mut *mut ffi::PyObject) -> c_int,
    describe: Option<unsafe extern "C" fn(*mut ffi::PyObject, *mut Described) -> c_int>,
}

/// The major version of DLPack that is spoken here.
const MAJOR: u32 = 1;
/// Whether torch has refused to describe a tensor here, mostly a sparse one. It takes a millisecond to make the error, so
/// from then on each tensor's layout is looked at first; before that the usual tensor pays nothing.
static HAS_REFUSED: AtomicBool = AtomicBool::new(false);
/// The name of a capsule that nobody has taken the tensor out of.
const UNUSED: &CStr = c"dltensor";

/// What of torch is used here.
struct Torch {
    exchange: Option<&'static ExchangeApi>,
    to_capsule: Py<PyAny>,
    from_capsule: Py<PyAny>,
    /// The layout of tensors that are elements at strides, and what tells a tensor's.
    strided: Py<PyAny>,
    layout: Py<PyString>,
    requires_grad: Py<PyString>,
    is_neg: Py<PyString>,
    is_conj: Py<PyString>,
    untyped_storage: Py<PyString>,
    nbytes: Py<PyString>,
    storage_offset: Py<PyString>,
    stride: Py<PyString>,
}

/// Torch, imported by the first call.
///
/// FORK: no lock, as for `helpers`; whoever forks waits for the import.
fn torch(py: Python<'_>) -> PyResult<&'static Torch> {
    static TORCH: OnceBox<Torch> = OnceBox::new();
    TORCH.get_or_try_init(|| {
        type Ways<'py> = (Option<Bound<'py, PyCapsule>>, Bound<'py, PyAny>, Bound<'py, PyAny>, Py<PyAny>);
        let (table, to_capsule, from_capsule, strided): Ways<'_> =
            helpers(py)?.dlpack_ways.bind(py).call0()?.extract()?;
        let exchange = match table {
            None => None,
            Some(capsule) => {
                let table = capsule.pointer_checked(Some(c"dlpack_exchange_api"))?.cast::<ExchangeApi>();
                std::mem::forget(capsule);
                // SAFETY: DLPack says that the capsule of this name holds such a table, which lives as long as the
                // process; its version is the first field of all versions.
                unsafe { (table.cast::<u32>().read() == MAJOR).then_some(table.as_ref()) }
            }
        };
        let name = |name| PyString::intern(py, name).unbind();
        Ok(Box::new(Torch {
            exchange: exchange.filter(|exchange| exchange.describe.is_some()),
            to_capsule: to_capsule.unbind(),
            from_capsule: from_capsule.unbind(),
            strided,
            layout: name("layout"),
            requires_grad: name("requires_grad"),
            is_neg: name("is_neg"),
            is_conj: name("is_conj"),
            untyped_storage: name("untyped_storage"),
            nbytes: name("nbytes"),
            storage_offset: name("storage_offset"),
            stride: name("stride"),
        }))
    })
}

/// Calls a method without arguments.
fn call<'py>(object: &Bound<'py, PyAny>, name: &Py<PyString>) -> PyResult<Bound<'py, PyAny>> {
    let end = null_mut::<ffi::PyObject>();
    // SAFETY: a live object, and a name; a new reference, or NULL with an exception set.
    unsafe {
        let result = ffi::PyObject_CallMethodObjArgs(object.as_ptr(), name.as_ptr(), end);
        Bound::from_owned_ptr_or_err(object.py(), result)
    }
}

/// A tensor that is nothing but elements in memory of this process, of which there is at least one.
pub struct Exported<'py> {
    tensor: Described,
    item: Bound<'py, PyAny>,
    size: usize,
    _capsule: Option<Bound<'py, PyAny>>,
}

impl<'py> Exported<'py> {
    /// Looks at an exact tensor; None if there is more to it than its elements, or they are not all there.
    pub fn of(item: &Bound<'py, PyAny>) -> PyResult<Option<Self>> {
        let py = item.py();
        let torch = torch(py)?;
        if (HAS_REFUSED.load(Relaxed) && !item.getattr(&torch.layout)?.is(&torch.strided))
            || item.getattr(&torch.requires_grad)?.is_truthy()?
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
            && !exported.has_lazy_bits(torch)?
            && exported.is_within_storage(torch)?;
        Ok(plain.then_some(exported))
    }

    pub fn element(&self) -> ElementType {
        self.tensor.element
    }

    /// Bytes of an element.
    pub fn size(&self) -> usize {
        self.size
    }

    pub fn shape(&self) -> &[i64] {
        self.extents(self.tensor.shape)
    }

    fn extents(&self, of: *const i64) -> &[i64] {
        if self.tensor.dimensions == 0 {
            return &[]; // there may be no table of them
        }
        // SAFETY: a tensor of so many dimensions has that many lengths and strides, as long as it or the capsule lives.
        unsafe { std::slice::from_raw_parts(of, self.tensor.dimensions as usize) }
    }

    /// The first element.
    pub fn data(&self) -> *const u8 {
        self.tensor.data.cast_const().cast::<u8>().wrapping_add(self.tensor.byte_offset as usize)
    }

    /// Bytes of all elements.
    pub fn len(&self) -> usize {
        self.shape().iter().fold(self.size, |len, &count| len.saturating_mul(count as usize))
    }

    /// Bytes from the first element to behind the last one.
    pub fn reach(&self) -> usize {
        let strides = self.extents(self.tensor.strides);
        reach(self.size, self.shape(), strides).unwrap_or(usize::MAX)
    }

    /// Whether the elements lie one behind the other, in the order of their indices.
    pub fn is_contiguous(&self) -> bool {
        let mut next = 1_i64;
        self.shape().iter().zip(self.extents(self.tensor.strides)).rev().all(|(&count, &stride)| {
            let fits = count == 1 || stride == next;
            next = next.saturating_mul(count);
            fits
        })
    }

    /// Elements from one to the next along each dimension, as torch has them: in a DLPack's, those of dimensions with
    /// one element may be others.
    pub fn strides(&self) -> PyResult<Vec<i64>> {
        call(&self.item, &torch(self.item.py())?.stride)?.extract()
    }

    /// Whether the elements are others than those in memory.
    fn has_lazy_bits(&self, torch: &Torch) -> PyResult<bool> {
        let element = self.tensor.element;
        let is = |name| call(&self.item, name).and_then(|is| is.is_truthy());
        Ok(element.has_lazy_sign() && is(&torch.is_neg)? || element.is_complex() && is(&torch.is_conj)?)
    }

    /// Whether all elements are in the storage, which users may resize.
    fn is_within_storage(&self, torch: &Torch) -> PyResult<bool> {
        let there: usize = call(&call(&self.item, &torch.untyped_storage)?, &torch.nbytes)?.extract()?;
        let reach = self.reach();
        if there < reach {
            return Ok(false);
        }
        let offset: usize = call(&self.item, &torch.storage_offset)?.extract()?;
        let begins = offset.checked_mul(self.size);
        Ok(begins.and_then(|begins| begins.checked_add(reach)).is_some_and(|end| end <= there))
    }
}

/// Bytes from the first element to behind the last one; None if they are more than memory could hold.
pub fn reach(size: usize, shape: &[i64], strides: &[i64]) -> Option<usize> {
    let last = shape.iter().zip(strides).try_fold(0_usize, |last, (&count, &stride)| {
        let steps = usize::try_from(count).ok()?.checked_sub(1)?;
        last.checked_add(steps.checked_mul(usize::try_from(stride).ok()?)?)
    });
    last?.checked_add(1)?.checked_mul(size)
}

/// Whether a user has given the object attributes.
fn has_attributes(item: &Bound<'_, PyAny>) -> PyResult<bool> {
    // SAFETY: an object of a class that gives its objects dictionaries; a new reference, or NULL with an exception set.
    unsafe {
        let dict = ffi::PyObject_GenericGetDict(item.as_ptr(), null_mut());
        let dict = Bound::from_owned_ptr_or_err(item.py(), dict)?;
        Ok(ffi::PyDict_Size(dict.as_ptr()) != 0)
    }
}

impl Torch {
    /// The description of a tensor, and what keeps it, if that is not the tensor itself; None if torch has none.
    fn describe<'py>(&self, item: &Bound<'py, PyAny>) -> PyResult<Option<(Described, Option<Bound<'py, PyAny>>)>> {
        let py = item.py();
        if let Some(describe) = self.exchange.and_then(|exchange| exchange.describe) {
            let mut described = MaybeUninit::uninit();
            // SAFETY: an exact tensor, whose class the table is of; the description is written unless -1 is returned,
            // with an exception set.
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
        // SAFETY: DLPack says that a capsule of this name holds this.
        let described = unsafe { managed.as_ref().tensor };
        Ok(Some((described, Some(capsule))))
    }
}

/// Nothing, if torch says that a tensor has no description.
fn none_of<T>(py: Python<'_>, error: PyErr) -> PyResult<Option<T>> {
    HAS_REFUSED.store(true, Relaxed);
    if error.is_instance_of::<PyException>(py) { Ok(None) } else { Err(error) }
}

/// The memory of a tensor that was made here.
pub enum Memory {
    Leased(Arc<Lease>),
    Own(Own),
}

/// Memory of a tensor's own, aligned for any element.
pub struct Own(Vec<u128>);

impl Own {
    /// Room for `len` bytes.
    pub fn new(len: usize) -> PyResult<Self> {
        let mut words = Vec::new();
        let room = words.try_reserve_exact(len.div_ceil(size_of::<u128>()));
        room.map_err(|_| PyMemoryError::new_err(format!("there is no memory for a tensor of {len} bytes")))?;
        Ok(Self(words))
    }

    pub fn as_mut_ptr(&mut self) -> *mut u8 {
        self.0.as_mut_ptr().cast()
    }
}

/// What a new tensor lives in: torch frees it, in any thread, once the last tensor over the memory has died.
#[repr(C)]
struct Home<M> {
    managed: M,
    /// Shape and strides.
    extents: Vec<i64>,
    _memory: Memory,
}

impl<M> Home<M> {
    /// # Safety
    /// `managed` is the first field of a home that was taken out of its box, and nobody uses it afterwards.
    unsafe extern "C" fn free(managed: *mut M) {
        // SAFETY: as promised by the caller; the home begins with what it manages.
        drop(unsafe { Box::from_raw(managed.cast::<Self>()) });
    }

    /// Hands it out, to be freed by `free`.
    fn leave(self) -> *mut M {
        Box::into_raw(Box::new(self)).cast()
    }
}

/// A tensor over memory.
///
/// `extents` are its shape, and behind that its strides in elements, by which all elements lie in the memory.
pub fn tensor_over<'py>(
    py: Python<'py>,
    element: ElementType,
    mut extents: Vec<i64>,
    mut memory: Memory,
) -> PyResult<Bound<'py, PyAny>> {
    let data = match &mut memory {
        Memory::Leased(lease) => lease.as_mut_ptr(),
        Memory::Own(own) => own.as_mut_ptr(),
    };
    let dimensions = extents.len() / 2;
    let shape = extents.as_mut_ptr(); // the vector's memory stays where it is when the vector moves
    let strides = shape.wrapping_add(dimensions);
    let dimensions = c_int::try_from(dimensions).map_err(|_| malformed())?;
    let tensor = Described { data: data.cast(), device: [CPU, 0], dimensions, element, shape, strides, byte_offset: 0 };
    let torch = torch(py)?;
    let context = null_mut();
    if let Some(exchange) = torch.exchange {
        let managed = Versioned { version: [MAJOR, 0], context, free: Some(Home::<Versioned>::free), flags: 0, tensor };
        let managed = Home { managed, extents, _memory: memory }.leave();
        let mut object = null_mut();
        // SAFETY: the table takes over what it is handed, also where it fails: then it sets an exception.
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
    // SAFETY: a new capsule, or NULL with an exception set. Whoever takes the tensor out of it renames it; if nobody did,
    // the tensor is ours still.
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
