package v10

import (
	"bytes"

	"github.com/quorate/quorate/amqp/v10/wire"
	"github.com/quorate/quorate/fsm/selector"
)

// filter is a filter of a source that can be in force: a selector.
type filter struct {
	selector string // empty: there is none
	pair     []byte // the filter as the client named and wrote it
}

// Codes of descriptors of filters that are selectors; their names are in isSelector.
const (
	codeJMSSelector = 0x468C00000004
	codeSQLFilter   = 0x120
)

func isSelector(descriptor wire.Value) bool {
	switch descriptor.Type {
	case wire.Symbol:
		name := string(descriptor.Bytes())
		return name == "apache.org:selector-filter:string" || name == "amqp:sql-filter"
	case wire.Ulong:
		return descriptor.Unsigned() == codeJMSSelector || descriptor.Unsigned() == codeSQLFilter
	}
	return false
}

// filterOf returns the first filter of a source that is a selector. All others are for other queues.
func filterOf(filters wire.MapBytes) (f filter, e *wire.Error) {
	for w := filters.Walk(); w.NextPair(); {
		if w.Value.Type != wire.Described {
			continue
		}
		of := w.Value.Walk()
		if !of.Next() || !isSelector(of.Value) || !of.Next() {
			continue
		}
		if of.Value.Type != wire.String {
			return f, wire.Errorf(wire.ConditionInvalidField, "the value of filter '%s' is not a string", w.Key.Bytes())
		}
		f = filter{string(of.Value.Bytes()), bytes.Clone(w.Pair)} // the frame is not kept
		if _, err := selector.Parse(f.selector); err != nil {
			return f, wire.Errorf(wire.ConditionInvalidField, "filter '%s': %s", w.Key.Bytes(), err)
		}
		return f, nil
	}
	return f, nil
}

// answer returns the map of filters that are in force; nil: none is.
func (f *filter) answer() wire.MapBytes {
	if f.selector == "" {
		return nil
	}
	return wire.EndMap(append(wire.StartMap(nil), f.pair...), 0, 1)
}
