package manage

import (
	"bytes"
	"encoding/xml"
	"errors"
	"fmt"
	"io"
	"strings"
)

// Namespaces of what is written.
const (
	atomSpace     = "http://www.w3.org/2005/Atom"
	connectSpace  = "http://schemas.microsoft.com/netservices/2010/10/servicebus/connect"
	countSpace    = "http://schemas.microsoft.com/netservices/2011/06/servicebus"
	instanceSpace = "http://www.w3.org/2001/XMLSchema-instance"
	schemaSpace   = "http://www.w3.org/2001/XMLSchema"
)

// Bounds of a document.
const (
	maxBody     = 1 << 20
	maxDepth    = 32
	maxElements = 1 << 14
)

// element is one that was read. Names are without their namespaces.
type element struct {
	name     string
	attrs    []xml.Attr
	text     string
	children []*element
}

var errXML = errors.New("the body is not a well-formed document without a DTD")

// parse reads a document.
func parse(r io.Reader) (*element, error) {
	d := xml.NewDecoder(r)
	root := &element{}
	open, count := []*element{root}, 0
	for {
		token, err := d.Token()
		if errors.Is(err, io.EOF) {
			break
		}
		if err != nil {
			return nil, fmt.Errorf("%w: %w", errXML, err)
		}
		top := open[len(open)-1]
		switch x := token.(type) {
		case xml.StartElement:
			if count++; len(open) > maxDepth || count > maxElements {
				return nil, errXML
			}
			e := &element{name: x.Name.Local, attrs: x.Copy().Attr}
			top.children = append(top.children, e)
			open = append(open, e)
		case xml.EndElement:
			open = open[:len(open)-1]
		case xml.CharData:
			top.text += string(x)
		case xml.Directive:
			return nil, errXML
		}
	}
	if len(root.children) != 1 {
		return nil, errXML
	}
	return root.children[0], nil
}

// child returns the first child of a name; nil: there is none, or e is nil.
func (e *element) child(name string) *element {
	if e != nil {
		for _, c := range e.children {
			if c.name == name {
				return c
			}
		}
	}
	return nil
}

// value is the text of a child; given is false if there is none, or it is nil.
func (e *element) value(name string) (text string, given bool) {
	c := e.child(name)
	if c == nil || c.attr("nil") == "true" {
		return "", false
	}
	return strings.TrimSpace(c.text), true
}

// attr is the value of an attribute, whatever its namespace.
func (e *element) attr(name string) string {
	for _, a := range e.attrs {
		if a.Name.Local == name {
			return a.Value
		}
	}
	return ""
}

// kind is the type that an element says it has, without a prefix.
func (e *element) kind() string {
	if e == nil {
		return ""
	}
	kind := e.attr("type")
	return kind[strings.LastIndexByte(kind, ':')+1:]
}

// document is one that is written.
type document struct{ bytes.Buffer }

// escape writes a text. Quotes stay as they are: some clients look for words in texts that they have not decoded.
func (d *document) escape(text string) {
	var b strings.Builder
	_ = xml.EscapeText(&b, []byte(text)) // it takes everything
	_, _ = unquoted.WriteString(d, b.String())
}

var unquoted = strings.NewReplacer("&#39;", "'", "&#34;", `"`)

// leaf writes an element with a text.
func (d *document) leaf(name, text string) {
	d.WriteString("<" + name + ">")
	d.escape(text)
	d.WriteString("</" + name[:end(name)] + ">")
}

// in writes an element around what inner writes. name may have attributes.
func (d *document) in(name string, inner func()) {
	d.WriteString("<" + name + ">")
	inner()
	d.WriteString("</" + name[:end(name)] + ">")
}

func end(name string) int {
	if i := strings.IndexByte(name, ' '); i > 0 {
		return i
	}
	return len(name)
}

// attribute is one with its name, for a name that in and leaf take.
func attribute(name, value string) string {
	var b bytes.Buffer
	_ = xml.EscapeText(&b, []byte(value))
	return " " + name + `="` + b.String() + `"`
}
