package scheduling

// Ejected is the value of an endpoint that is left out for a while because it failed, as long as others are left. Others have
// none.
type Ejected struct{}

// assumedAbsent are the data types that few endpoints ever have a value of: where nobody produces them, a decision is made again as
// if no endpoint had one.
var assumedAbsent = map[string]bool{DataTypeOf[Ejected](): true}

// AssumedAbsent reports whether a decision that is made again goes without a data type that was not recorded, as if no endpoint
// had a value.
func AssumedAbsent(dataType string) bool { return assumedAbsent[dataType] }
