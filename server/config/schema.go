package config

import (
	"reflect"
)

// Field is a field of a parameter struct as the configuration sees it, for the reference in the documentation.
type Field struct {
	// Key is its name in the file.
	Key string
	// GoName is its name in the struct Owner, which may be embedded in the one asked for.
	GoName string
	Owner  reflect.Type
	Tag    reflect.StructTag
	// Value is its value in the struct asked for.
	Value reflect.Value
}

// Fields lists the fields that a file can set in a struct.
func Fields(v reflect.Value) []Field {
	var fields []Field
	for _, f := range fieldsOf(v) {
		if f.name != "-" {
			fields = append(fields, Field{Key: f.name, GoName: f.owner.Field(f.index).Name, Owner: f.owner, Tag: f.tag, Value: f.value})
		}
	}
	return fields
}

// IsRaw reports whether a type stands for a part of the file whose shape depends on something else.
func IsRaw(t reflect.Type) bool { return t == rawType }
