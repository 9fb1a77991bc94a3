package entity

import "encoding/json"

// DefaultRule is the name of the rule of a subscription whose author names none.
const DefaultRule = "$Default"

// Bounds of rules.
const (
	maxExpression = 1024 // characters
	maxProperties = 64   // of a correlation filter, or parameters
)

// Rule says which messages a subscription takes, and what is changed of them.
// Exactly one of the filters is given.
type Rule struct {
	Name        string
	True, False bool               `json:",omitempty"`
	SQL         *Expression        `json:",omitempty"`
	Correlation *CorrelationFilter `json:",omitempty"`
	Action      *Expression        `json:",omitempty"` // nil: none
}

// Expression is a text of the service's SQL with its parameters.
type Expression struct {
	Text       string
	Parameters []Property `json:",omitempty"`
}

// CorrelationFilter compares what is given; an empty text is not given.
type CorrelationFilter struct {
	CorrelationID, MessageID, To, ReplyTo, Label, SessionID, ReplyToSessionID, ContentType string     `json:",omitempty"`
	Properties                                                                             []Property `json:",omitempty"`
}

// Property is a name and a typed value.
type Property struct {
	Name  string
	Value Value
}

// Kind is the type of a value.
type Kind string

// The kinds, as schemas of XML call them.
const (
	String   Kind = "string"
	Int      Kind = "int"
	Long     Kind = "long"
	Double   Kind = "double"
	Boolean  Kind = "boolean"
	DateTime Kind = "dateTime"
	Span     Kind = "duration"
	GUID     Kind = "guid"
	Decimal  Kind = "decimal"
)

// Value is what a property is compared with. Text is in the form of XML.
type Value struct {
	Kind Kind
	Text string
}

// NewRule is a rule that takes everything.
func NewRule(name string) *Rule { return &Rule{Name: name, True: true} }

// Check refuses what no rule can be. Whether expressions can be read is for who
// evaluates them to say.
func (r *Rule) Check() error {
	if err := CheckRuleName(r.Name); err != nil {
		return err
	}
	filters := 0
	for _, given := range []bool{r.True, r.False, r.SQL != nil, r.Correlation != nil} {
		if given {
			filters++
		}
	}
	if filters != 1 {
		return invalid("Filter", "a rule has one filter, not %d", filters)
	}
	if c := r.Correlation; c != nil && len(c.Properties) > maxProperties {
		return invalid("Filter", "a correlation filter has at most %d properties", maxProperties)
	}
	return firstError(r.SQL.check("Filter"), r.Action.check("Action"))
}

func (e *Expression) check(field string) error {
	switch {
	case e == nil:
		return nil
	case e.Text == "" || len([]rune(e.Text)) > maxExpression:
		return invalid(field, "an expression has 1 to %d characters", maxExpression)
	case len(e.Parameters) > maxProperties:
		return invalid(field, "an expression has at most %d parameters", maxProperties)
	}
	return nil
}

// EncodeRule returns what is kept of a rule.
func EncodeRule(r *Rule) ([]byte, error) {
	b, err := json.Marshal(r)
	if err == nil && len(b) > maxDescription {
		err = invalid("", "The rule %s has %d bytes, more than %d.", r.Name, len(b), maxDescription)
	}
	return b, err
}

// DecodeRule reads what EncodeRule has made.
func DecodeRule(b []byte) (*Rule, error) {
	r := new(Rule)
	if err := json.Unmarshal(b, r); err != nil {
		return nil, err
	}
	return r, nil
}
