package main

import (
	"encoding/xml"
	"fmt"
)

// spec is what is needed of the specification, in its order.
type spec struct {
	Constants []constant `xml:"constant"`
	Domains   []domain   `xml:"domain"`
	Classes   []class    `xml:"class"`
}

type constant struct {
	Name  string `xml:"name,attr"`
	Value int    `xml:"value,attr"`
	Class string `xml:"class,attr"` // soft-error, hard-error or nothing
}

type domain struct {
	Name string `xml:"name,attr"`
	Type string `xml:"type,attr"`
}

type class struct {
	Name    string   `xml:"name,attr"`
	Index   int      `xml:"index,attr"`
	Methods []method `xml:"method"`
}

type method struct {
	Name        string  `xml:"name,attr"`
	Index       int     `xml:"index,attr"`
	Content     int     `xml:"content,attr"`
	Synchronous int     `xml:"synchronous,attr"`
	Fields      []field `xml:"field"`
}

type field struct {
	Name     string `xml:"name,attr"`
	Domain   string `xml:"domain,attr"`
	Type     string `xml:"type,attr"` // after readSpec always set
	Reserved int    `xml:"reserved,attr"`
}

// readSpec parses the specification and resolves the fields' domains.
func readSpec(text []byte) (*spec, error) {
	var s spec
	if err := xml.Unmarshal(text, &s); err != nil {
		return nil, err
	}
	types := map[string]string{}
	for _, d := range s.Domains {
		types[d.Name] = d.Type
	}
	for _, c := range s.Classes {
		for _, m := range c.Methods {
			for i := range m.Fields {
				f := &m.Fields[i]
				if f.Type == "" {
					f.Type = types[f.Domain]
				}
				if _, ok := codecs[f.Type]; !ok && f.Type != "bit" {
					return nil, fmt.Errorf("%s.%s: field %s has unknown type %q", c.Name, m.Name, f.Name, f.Type)
				}
			}
		}
	}
	return &s, nil
}
