// Package entity describes queues, topics, subscriptions and rules as programs for
// Azure Service Bus know them, and says what a broker is to have for each.
//
// A description is what its author has said, with the service's defaults for the
// rest. It is kept as text beside the broker's own object, whose arguments are
// derived from it, and is what the author reads again. Names are compared without
// case and kept as they were given.
//
// The package knows neither the wire nor the cluster.
package entity

import "fmt"

// Invalid is why a description is refused. Texts are for the author.
type Invalid struct {
	Field string // as the author writes it; empty: the whole
	Text  string
}

func (e *Invalid) Error() string {
	if e.Field == "" {
		return e.Text
	}
	return fmt.Sprintf("The value of the property %s is not valid: %s", e.Field, e.Text)
}

// Full is why nothing more is taken. The text is for the author.
type Full struct{ Text string }

func (e *Full) Error() string { return e.Text }

func invalid(field, format string, values ...any) error {
	return &Invalid{field, fmt.Sprintf(format, values...)}
}
