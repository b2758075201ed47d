package decisionlog

import (
	"fmt"
	"math"

	"google.golang.org/protobuf/reflect/protoreflect"

	decisionv1 "github.com/sluice-epp/sluice/api/sluice/decision/v1"
)

// maxNumber bounds a number with a fraction, on either side of 0. As ms it is 31 million years. Sums of such numbers, and their
// products with as large ones, are far from the end of what a float64 holds.
const maxNumber = 1e18

// impossible reports a number that no decision has: one that is not a number, infinite, or beyond maxNumber. It is nil where there is
// none. Whoever adds such a number up loses all the others.
func impossible(d *decisionv1.Decision) error { return impossibleIn(d.ProtoReflect(), "") }

func impossibleIn(m protoreflect.Message, path string) (err error) {
	m.Range(func(fd protoreflect.FieldDescriptor, v protoreflect.Value) bool {
		name := path + string(fd.Name())
		switch {
		case fd.IsMap() || fd.Kind() != protoreflect.DoubleKind && fd.Message() == nil:
		case fd.IsList():
			for i, l := 0, v.List(); i < l.Len() && err == nil; i++ {
				err = impossibleValue(fd, l.Get(i), name, i)
			}
		default:
			err = impossibleValue(fd, v, name, -1)
		}
		return err == nil
	})
	return err
}

// impossibleValue looks at a field's value; index is its place in a list, or below 0.
func impossibleValue(fd protoreflect.FieldDescriptor, v protoreflect.Value, name string, index int) error {
	if fd.Message() == nil && math.Abs(v.Float()) <= maxNumber { // NaN is not
		return nil
	}
	if index >= 0 {
		name = fmt.Sprintf("%s[%d]", name, index)
	}
	if fd.Message() != nil {
		return impossibleIn(v.Message(), name+".")
	}
	return fmt.Errorf("%s: must be from -1e18 to 1e18, got %v", name, v.Float())
}
