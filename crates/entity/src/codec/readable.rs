//! Refuses values that a format would write but not read back.
//!
//! Why: an event that is stored and cannot be read locks its entity for ever, so it is refused before it is stored.
//! `serde_json` writes `null` in place of NaN and the infinities. Both `serde_json` and `ciborium` write nesting of any
//! depth but read only a limited depth. Without the check a client could send data of the greatest depth that is
//! accepted, and the data could become an event that is one level deeper and cannot be read.

use serde::Serialize;
use serde::ser::{
    self, Error, SerializeMap, SerializeSeq, SerializeStruct, SerializeStructVariant,
    SerializeTuple, SerializeTupleStruct, SerializeTupleVariant, Serializer,
};

/// Which numbers a format has.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Numbers {
    /// The format has all numbers.
    #[cfg(feature = "cbor")]
    All,
    /// The format has neither NaN nor the infinities.
    Finite,
}

/// The deepest nesting that is written. Formats read more (JSON 127, CBOR 255), which leaves some levels for upcasts.
const DEPTH_MAX: u8 = 100;

/// A value that is checked while it is serialized.
pub(super) struct Readable<'a, T: ?Sized> {
    value: &'a T,
    limits: Limits,
}

#[derive(Clone, Copy)]
struct Limits {
    numbers: Numbers,
    depth_left: u8,
}

impl Limits {
    /// Returns the limits inside `levels` further levels of nesting. The result is an error if that is too deep.
    fn deeper<E: Error>(self, levels: u8) -> Result<Self, E> {
        match self.depth_left.checked_sub(levels) {
            Some(depth_left) => Ok(Self { depth_left, ..self }),
            None => Err(E::custom(format!(
                "it is nested deeper than {DEPTH_MAX} levels"
            ))),
        }
    }

    fn of<T: ?Sized>(self, value: &T) -> Readable<'_, T> {
        Readable {
            value,
            limits: self,
        }
    }
}

impl<'a, T: ?Sized> Readable<'a, T> {
    pub(super) fn new(value: &'a T, numbers: Numbers) -> Self {
        Limits {
            numbers,
            depth_left: DEPTH_MAX,
        }
        .of(value)
    }
}

impl<T: Serialize + ?Sized> Serialize for Readable<'_, T> {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        self.value.serialize(Checked(serializer, self.limits))
    }
}

/// A serializer, or a part of one, that checks values and passes them on.
struct Checked<S>(S, Limits);

impl<S> Checked<S> {
    fn number<E: Error>(&self, is_finite: bool, value: impl std::fmt::Display) -> Result<(), E> {
        if is_finite || self.1.numbers != Numbers::Finite {
            return Ok(());
        }
        Err(E::custom(format!("the number {value} has no form in JSON")))
    }
}

macro_rules! hand_on {
    ($($method:ident: $type:ty,)*) => {
        $(fn $method(self, value: $type) -> Result<S::Ok, S::Error> { self.0.$method(value) })*
    };
}

impl<S: Serializer> Serializer for Checked<S> {
    type Ok = S::Ok;
    type Error = S::Error;
    type SerializeSeq = Checked<S::SerializeSeq>;
    type SerializeTuple = Checked<S::SerializeTuple>;
    type SerializeTupleStruct = Checked<S::SerializeTupleStruct>;
    type SerializeTupleVariant = Checked<S::SerializeTupleVariant>;
    type SerializeMap = Checked<S::SerializeMap>;
    type SerializeStruct = Checked<S::SerializeStruct>;
    type SerializeStructVariant = Checked<S::SerializeStructVariant>;

    fn serialize_f32(self, value: f32) -> Result<S::Ok, S::Error> {
        self.number(value.is_finite(), value)?;
        self.0.serialize_f32(value)
    }

    fn serialize_f64(self, value: f64) -> Result<S::Ok, S::Error> {
        self.number(value.is_finite(), value)?;
        self.0.serialize_f64(value)
    }

    hand_on! {
        serialize_bool: bool,
        serialize_i8: i8, serialize_i16: i16, serialize_i32: i32, serialize_i64: i64, serialize_i128: i128,
        serialize_u8: u8, serialize_u16: u16, serialize_u32: u32, serialize_u64: u64, serialize_u128: u128,
        serialize_char: char, serialize_str: &str, serialize_bytes: &[u8],
        serialize_unit_struct: &'static str,
    }

    fn serialize_none(self) -> Result<S::Ok, S::Error> {
        self.0.serialize_none()
    }

    fn serialize_some<T: Serialize + ?Sized>(self, value: &T) -> Result<S::Ok, S::Error> {
        self.0.serialize_some(&self.1.of(value))
    }

    fn serialize_unit(self) -> Result<S::Ok, S::Error> {
        self.0.serialize_unit()
    }

    fn serialize_unit_variant(
        self,
        name: &'static str,
        index: u32,
        variant: &'static str,
    ) -> Result<S::Ok, S::Error> {
        self.0.serialize_unit_variant(name, index, variant)
    }

    fn serialize_newtype_struct<T: Serialize + ?Sized>(
        self,
        name: &'static str,
        value: &T,
    ) -> Result<S::Ok, S::Error> {
        self.0.serialize_newtype_struct(name, &self.1.of(value))
    }

    fn serialize_newtype_variant<T: Serialize + ?Sized>(
        self,
        name: &'static str,
        index: u32,
        variant: &'static str,
        value: &T,
    ) -> Result<S::Ok, S::Error> {
        let limits = self.1.deeper(1)?;
        self.0
            .serialize_newtype_variant(name, index, variant, &limits.of(value))
    }

    fn serialize_seq(self, len: Option<usize>) -> Result<Self::SerializeSeq, S::Error> {
        let limits = self.1.deeper(1)?;
        self.0
            .serialize_seq(len)
            .map(|inner| Checked(inner, limits))
    }

    fn serialize_tuple(self, len: usize) -> Result<Self::SerializeTuple, S::Error> {
        let limits = self.1.deeper(1)?;
        self.0
            .serialize_tuple(len)
            .map(|inner| Checked(inner, limits))
    }

    fn serialize_tuple_struct(
        self,
        name: &'static str,
        len: usize,
    ) -> Result<Self::SerializeTupleStruct, S::Error> {
        let limits = self.1.deeper(1)?;
        self.0
            .serialize_tuple_struct(name, len)
            .map(|inner| Checked(inner, limits))
    }

    fn serialize_tuple_variant(
        self,
        name: &'static str,
        index: u32,
        variant: &'static str,
        len: usize,
    ) -> Result<Self::SerializeTupleVariant, S::Error> {
        let limits = self.1.deeper(2)?;
        self.0
            .serialize_tuple_variant(name, index, variant, len)
            .map(|inner| Checked(inner, limits))
    }

    fn serialize_map(self, len: Option<usize>) -> Result<Self::SerializeMap, S::Error> {
        let limits = self.1.deeper(1)?;
        self.0
            .serialize_map(len)
            .map(|inner| Checked(inner, limits))
    }

    fn serialize_struct(
        self,
        name: &'static str,
        len: usize,
    ) -> Result<Self::SerializeStruct, S::Error> {
        let limits = self.1.deeper(1)?;
        self.0
            .serialize_struct(name, len)
            .map(|inner| Checked(inner, limits))
    }

    fn serialize_struct_variant(
        self,
        name: &'static str,
        index: u32,
        variant: &'static str,
        len: usize,
    ) -> Result<Self::SerializeStructVariant, S::Error> {
        let limits = self.1.deeper(2)?;
        self.0
            .serialize_struct_variant(name, index, variant, len)
            .map(|inner| Checked(inner, limits))
    }

    fn collect_str<T: std::fmt::Display + ?Sized>(self, value: &T) -> Result<S::Ok, S::Error> {
        self.0.collect_str(value)
    }

    fn is_human_readable(&self) -> bool {
        self.0.is_human_readable()
    }
}

macro_rules! check_elements {
    ($($trait:ident $method:ident,)*) => {
        $(impl<T: $trait> ser::$trait for Checked<T> {
            type Ok = T::Ok;
            type Error = T::Error;

            fn $method<V: Serialize + ?Sized>(&mut self, value: &V) -> Result<(), T::Error> {
                self.0.$method(&self.1.of(value))
            }

            fn end(self) -> Result<T::Ok, T::Error> {
                self.0.end()
            }
        })*
    };
}

check_elements! {
    SerializeSeq serialize_element,
    SerializeTuple serialize_element,
    SerializeTupleStruct serialize_field,
    SerializeTupleVariant serialize_field,
}

macro_rules! check_fields {
    ($($trait:ident,)*) => {
        $(impl<T: $trait> ser::$trait for Checked<T> {
            type Ok = T::Ok;
            type Error = T::Error;

            fn serialize_field<V: Serialize + ?Sized>(
                &mut self,
                key: &'static str,
                value: &V,
            ) -> Result<(), T::Error> {
                self.0.serialize_field(key, &self.1.of(value))
            }

            fn skip_field(&mut self, key: &'static str) -> Result<(), T::Error> {
                self.0.skip_field(key)
            }

            fn end(self) -> Result<T::Ok, T::Error> {
                self.0.end()
            }
        })*
    };
}

check_fields! { SerializeStruct, SerializeStructVariant, }

impl<T: SerializeMap> ser::SerializeMap for Checked<T> {
    type Ok = T::Ok;
    type Error = T::Error;

    fn serialize_key<K: Serialize + ?Sized>(&mut self, key: &K) -> Result<(), T::Error> {
        self.0.serialize_key(&self.1.of(key))
    }

    fn serialize_value<V: Serialize + ?Sized>(&mut self, value: &V) -> Result<(), T::Error> {
        self.0.serialize_value(&self.1.of(value))
    }

    fn end(self) -> Result<T::Ok, T::Error> {
        self.0.end()
    }
}
