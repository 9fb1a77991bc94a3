package main

import (
	"encoding/json"
	"fmt"
	"slices"
	"strings"
)

// column is a column that a listing can show.
type column[T any] struct {
	name  string
	about string
	value func(row T) any
}

// list shows rows with the named columns; none: the first few.
func list[T any](c *call, title string, columns []column[T], names []string, first int, rows []T) error {
	chosen := columns[:first]
	if len(names) > 0 {
		chosen = nil
		for _, name := range names {
			i := slices.IndexFunc(columns, func(x column[T]) bool { return x.name == name })
			if i < 0 {
				return usageError("no column %q", name)
			}
			chosen = append(chosen, columns[i])
		}
	}
	if c.options.formatter == "json" {
		objects := make([]map[string]any, len(rows))
		for i, row := range rows {
			objects[i] = map[string]any{}
			for _, x := range chosen {
				objects[i][x.name] = x.value(row)
			}
		}
		return c.json(objects)
	}
	if !c.options.quiet && !c.options.bare {
		fmt.Fprintln(c.out, title)
	}
	if !c.options.bare {
		words := make([]string, len(chosen))
		for i, x := range chosen {
			words[i] = x.name
		}
		fmt.Fprintln(c.out, strings.Join(words, "\t"))
	}
	for _, row := range rows {
		words := make([]string, len(chosen))
		for i, x := range chosen {
			words[i] = cell(x.value(row))
		}
		fmt.Fprintln(c.out, strings.Join(words, "\t"))
	}
	return nil
}

// cell formats a value for a table: an empty word for none, JSON for values of more than one word.
func cell(v any) string {
	switch v := v.(type) {
	case nil:
		return ""
	case map[string]any, map[string]int64, map[string]string, []string:
		text, err := json.Marshal(v)
		if err != nil {
			return err.Error()
		}
		return string(text)
	}
	return fmt.Sprint(v)
}

// field is a line of output that is not a listing.
type field struct {
	name  string
	value any
}

func (c *call) fields(title string, fields ...field) {
	if title != "" && !c.options.quiet && !c.options.bare {
		fmt.Fprintln(c.out, title)
	}
	for _, f := range fields {
		fmt.Fprintf(c.out, "%s\t%v\n", f.name, f.value)
	}
}

func (c *call) json(v any) error {
	e := json.NewEncoder(c.out)
	e.SetIndent("", "  ")
	return e.Encode(v)
}
