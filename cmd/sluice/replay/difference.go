package replay

import (
	"bytes"
	"fmt"
	"math"

	"google.golang.org/protobuf/reflect/protoreflect"

	decisionv1 "github.com/sluice-epp/sluice/api/sluice/decision/v1"
)

// Difference is the first field in which a decision made again differs.
type Difference struct {
	// ID and ClientRequestID name the decision.
	ID              uint64 `json:"id"`
	ClientRequestID string `json:"client_request_id,omitempty"`
	// Field is its path, such as candidates[3].total.
	Field string `json:"field"`
	// Recorded and Again are its values.
	Recorded string `json:"recorded"`
	Again    string `json:"again"`
}

// differenceOf is the first difference of two records, in the order of the fields' numbers.
func differenceOf(recorded, again *decisionv1.Decision) Difference {
	d := Difference{ID: recorded.GetId(), ClientRequestID: recorded.GetClientRequestId(), Field: "unknown fields", Recorded: "?", Again: "?"}
	outcome := recorded.Outcome
	recorded.Outcome = nil
	defer func() { recorded.Outcome = outcome }()
	d.message("", recorded.ProtoReflect(), again.ProtoReflect())
	return d
}

// message looks for a difference, and reports whether there is one.
func (d *Difference) message(path string, a, b protoreflect.Message) bool {
	fields := a.Descriptor().Fields()
	for i := range fields.Len() {
		fd := fields.Get(i)
		at := path + string(fd.Name())
		switch {
		case a.Has(fd) != b.Has(fd) && !fd.IsList() && !fd.IsMap():
			return d.set(at, shown(a, fd), shown(b, fd))
		case fd.IsMap():
			if x, y := pairs(a.Get(fd).Map()), pairs(b.Get(fd).Map()); x != y {
				return d.set(at, x, y)
			}
		case fd.IsList():
			if d.list(at, fd, a.Get(fd).List(), b.Get(fd).List()) {
				return true
			}
		case fd.Message() != nil:
			if a.Has(fd) && d.message(at+".", a.Get(fd).Message(), b.Get(fd).Message()) {
				return true
			}
		case !sameScalar(fd, a.Get(fd), b.Get(fd)):
			return d.set(at, shown(a, fd), shown(b, fd))
		}
	}
	if !bytes.Equal(a.GetUnknown(), b.GetUnknown()) {
		return d.set(path+"(fields of another version)", fmt.Sprintf("%d bytes", len(a.GetUnknown())), fmt.Sprintf("%d bytes", len(b.GetUnknown())))
	}
	return false
}

func (d *Difference) set(field, recorded, again string) bool {
	d.Field, d.Recorded, d.Again = field, recorded, again
	return true
}

func (d *Difference) list(at string, fd protoreflect.FieldDescriptor, a, b protoreflect.List) bool {
	for i := range min(a.Len(), b.Len()) {
		at := fmt.Sprintf("%s[%d]", at, i)
		if fd.Message() != nil {
			if d.message(at+".", a.Get(i).Message(), b.Get(i).Message()) {
				return true
			}
		} else if !sameScalar(fd, a.Get(i), b.Get(i)) {
			return d.set(at, text(fd, a.Get(i)), text(fd, b.Get(i)))
		}
	}
	if a.Len() != b.Len() {
		return d.set(at, fmt.Sprintf("%d of them", a.Len()), fmt.Sprintf("%d of them", b.Len()))
	}
	return false
}

// sameScalar compares numbers bit by bit.
func sameScalar(fd protoreflect.FieldDescriptor, a, b protoreflect.Value) bool {
	if fd.Kind() == protoreflect.DoubleKind {
		return math.Float64bits(a.Float()) == math.Float64bits(b.Float())
	}
	return a.Equal(b)
}

func shown(m protoreflect.Message, fd protoreflect.FieldDescriptor) string {
	if fd.HasPresence() && !m.Has(fd) {
		return "absent"
	}
	return text(fd, m.Get(fd))
}

func text(fd protoreflect.FieldDescriptor, v protoreflect.Value) string {
	switch {
	case fd.Enum() != nil:
		if named := fd.Enum().Values().ByNumber(v.Enum()); named != nil {
			return string(named.Name())
		}
	case fd.Message() != nil:
		return "present"
	case fd.Kind() == protoreflect.StringKind:
		return fmt.Sprintf("%q", v.String())
	}
	return fmt.Sprint(v.Interface())
}

func pairs(m protoreflect.Map) string {
	all := map[string]string{}
	m.Range(func(k protoreflect.MapKey, v protoreflect.Value) bool { all[k.String()] = v.String(); return true })
	return fmt.Sprint(all) // sorted by key
}
