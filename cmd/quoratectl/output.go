package main

import (
	"encoding/csv"
	"encoding/json"
	"fmt"
	"io"
	"maps"
	"reflect"
	"slices"
	"strconv"
	"strings"
	"text/tabwriter"
	"time"
	"unicode"
	"unicode/utf8"

	"github.com/quorate/quorate/cluster/mgmt/api"
)

// column is a column that a listing can show.
type column[T any] struct {
	name  string
	value func(row T) any
}

// columns are those that a listing can show, and does show if none is named.
type columns[T any] struct{ all, shown []column[T] }

// columnsOf returns own, and a column for each other field of T's JSON, under its name there. shown are the names of
// those that are shown if none is named, in their order.
func columnsOf[T any](shown string, own ...column[T]) columns[T] {
	if t := reflect.TypeFor[T](); t.Kind() == reflect.Struct {
		for _, f := range reflect.VisibleFields(t) {
			name, _, _ := strings.Cut(f.Tag.Get("json"), ",")
			if name == "" || name == "-" || slices.ContainsFunc(own, func(x column[T]) bool { return x.name == name }) {
				continue
			}
			own = append(own, column[T]{name, func(row T) any { return fieldAt(reflect.ValueOf(row), f.Index) }})
		}
	}
	x := columns[T]{all: own}
	var unknown []string
	if x.shown, unknown = x.named(strings.Fields(shown)); unknown != nil {
		panic(fmt.Sprintf("no columns %q", unknown)) // a mistake in the text of the program
	}
	return x
}

// fieldAt is a field of a struct, without its pointer; nil for a pointer on the way that is nil.
func fieldAt(v reflect.Value, index []int) any {
	for _, i := range index {
		if v = reflect.Indirect(v); !v.IsValid() {
			return nil
		}
		v = v.Field(i)
	}
	if v.Kind() == reflect.Pointer && v.IsNil() {
		return nil
	}
	return reflect.Indirect(v).Interface()
}

// named returns the columns with these names, and the names that no column has.
func (x columns[T]) named(names []string) (found []column[T], unknown []string) {
	for _, name := range names {
		if i := slices.IndexFunc(x.all, func(x column[T]) bool { return x.name == name }); i >= 0 {
			found = append(found, x.all[i])
		} else {
			unknown = append(unknown, name)
		}
	}
	return found, unknown
}

// names are those of all columns, those that are shown first.
func (x columns[T]) names() (all []string) {
	for _, c := range slices.Concat(x.shown, x.all) {
		if !slices.Contains(all, c.name) {
			all = append(all, c.name)
		}
	}
	return all
}

// listAt shows the rows that the node answers at a path; see list.
func listAt[T any](c *call, at, title string, columns columns[T], names []string) error {
	var rows []T
	if err := c.get(at, &rows); err != nil {
		return err
	}
	return list(c, title, columns, names, rows)
}

// listing is a verb that shows the rows that the node answers at a path. In its title and its path VHOST stands for the
// vhost, and WORD for the verb's argument; without one, the verb's arguments are names of columns.
func listing[T any](columns columns[T], title string, at ...string) func(*call) error {
	return func(c *call) error {
		names, fill := c.words, []string{"VHOST", c.options.vhost}
		if slices.Contains(at, "WORD") {
			names, fill = nil, append(fill, "WORD", c.words[0])
		}
		filled := strings.NewReplacer(fill...)
		segments := make([]string, len(at))
		for i, s := range at {
			segments[i] = filled.Replace(s)
		}
		return listAt(c, path(segments...), filled.Replace(title), columns, names)
	}
}

// list shows rows with the named columns; none: those that are shown then.
func list[T any](c *call, title string, columns columns[T], names []string, rows []T) error {
	chosen := columns.shown
	if len(names) > 0 {
		var unknown []string
		if chosen, unknown = columns.named(splitNames(names)); unknown != nil {
			return usageError("no column %q", unknown[0])
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
	head := make([]string, len(chosen))
	for i, x := range chosen {
		head[i] = x.name
	}
	cells := make([][]string, len(rows))
	for r, row := range rows {
		cells[r] = make([]string, len(chosen))
		for i, x := range chosen {
			cells[r][i] = cell(x.value(row))
		}
	}
	c.say(title)
	return c.rows(head, cells)
}

// listSome is list with the columns that are shown if none is named, for rows of which there are some.
func listSome[T any](c *call, title string, columns columns[T], rows []T) error {
	if len(rows) == 0 {
		return nil
	}
	return list(c, title, columns, nil, rows)
}

// splitNames separates names of columns, which may be joined by commas, too.
func splitNames(words []string) (names []string) {
	for _, w := range words {
		names = append(names, strings.FieldsFunc(w, func(r rune) bool { return r == ',' })...)
	}
	return names
}

// printable returns a text without what makes a terminal do something, or the text look like another: names and
// bodies are whatever clients choose. What is left out is written as Go writes it in strings.
func printable(text string) string {
	if !strings.ContainsFunc(text, func(r rune) bool { return r == utf8.RuneError || !unicode.IsPrint(r) }) {
		return text
	}
	var b strings.Builder
	for len(text) > 0 {
		r, n := utf8.DecodeRuneInString(text)
		if r == utf8.RuneError && n == 1 || !unicode.IsPrint(r) {
			quoted := strconv.Quote(text[:n])
			b.WriteString(quoted[1 : len(quoted)-1])
		} else {
			b.WriteString(text[:n])
		}
		text = text[n:]
	}
	return b.String()
}

// rows shows a table.
func (c *call) rows(head []string, rows [][]string) error {
	for _, row := range rows {
		for i, text := range row {
			row[i] = printable(text)
		}
	}
	if !c.options.bare && !c.options.plain {
		rows = slices.Insert(rows, 0, head)
	}
	switch c.options.formatter {
	case "csv":
		w := csv.NewWriter(c.out)
		return w.WriteAll(rows)
	case "pretty_table":
		return boxed(c.out, rows, !c.options.bare && !c.options.plain)
	}
	return c.lines(rows)
}

// lines shows rows with tabs between the columns, or one below the other where somebody looks at them.
func (c *call) lines(rows [][]string) error {
	if c.terminal {
		w := tabwriter.NewWriter(c.out, 0, 8, 2, ' ', 0)
		for _, row := range rows {
			fmt.Fprintln(w, strings.Join(row, "\t"))
		}
		return w.Flush()
	}
	for _, row := range rows {
		if _, err := fmt.Fprintln(c.out, strings.Join(row, "\t")); err != nil {
			return err
		}
	}
	return nil
}

// boxed draws a table with lines. The first row may be a head.
func boxed(to io.Writer, rows [][]string, head bool) error {
	if len(rows) == 0 {
		return nil
	}
	widths := make([]int, len(rows[0]))
	for _, row := range rows {
		for i, text := range row {
			widths[i] = max(widths[i], utf8.RuneCountInString(text))
		}
	}
	var b strings.Builder
	line := func(left, middle, right string) {
		b.WriteString(left)
		for i, w := range widths {
			if i > 0 {
				b.WriteString(middle)
			}
			b.WriteString(strings.Repeat("─", w+2))
		}
		b.WriteString(right + "\n")
	}
	line("┌", "┬", "┐")
	for r, row := range rows {
		for i, text := range row {
			b.WriteString("│ " + text + strings.Repeat(" ", widths[i]-utf8.RuneCountInString(text)+1))
		}
		b.WriteString("│\n")
		if r == 0 && head && len(rows) > 1 {
			line("├", "┼", "┤")
		}
	}
	line("└", "┴", "┘")
	_, err := io.WriteString(to, b.String())
	return err
}

// cell formats a value for a table: an empty word for none, JSON for values of more than one word.
func cell(v any) string {
	switch v := v.(type) {
	case nil:
		return ""
	case json.RawMessage:
		return string(v)
	}
	switch reflect.ValueOf(v).Kind() {
	case reflect.Map, reflect.Slice, reflect.Struct:
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

func (c *call) fields(title string, fields ...field) error {
	if title != "" {
		c.say(title)
	}
	rows := make([][]string, len(fields))
	for i, f := range fields {
		rows[i] = []string{f.name, fmt.Sprint(f.value)}
	}
	if c.options.formatter != "table" {
		return c.rows([]string{"name", "value"}, rows)
	}
	for _, row := range rows {
		row[1] = printable(row[1])
	}
	return c.lines(rows)
}

// show shows v as JSON, or else some fields of it.
func (c *call) show(v any, title string, fields ...field) error {
	if c.options.formatter == "json" {
		return c.json(v)
	}
	return c.fields(title, fields...)
}

// say shows a line that is not data.
func (c *call) say(line string) {
	if c.options.titled() {
		fmt.Fprintln(c.out, printable(line))
	}
}

func (c *call) json(v any) error {
	e := json.NewEncoder(c.out)
	e.SetIndent("", "  ")
	return e.Encode(v)
}

// progressEvery is how often the progress of long work is shown.
const progressEvery = 5 * time.Second

// progress shows how far work has come, on the standard error, until the result is called. state
// returns the line to show; none: it is not known.
func (c *call) progress(state func() string) (end func()) {
	if c.options.quiet || c.options.bare {
		return func() {}
	}
	stop, stopped := make(chan struct{}), make(chan struct{})
	go func() {
		defer close(stopped)
		tick := time.NewTicker(c.progressEvery)
		defer tick.Stop()
		for {
			select {
			case <-stop:
				return
			case <-tick.C:
				if line := state(); line != "" {
					fmt.Fprintln(c.errOut, line)
				}
			}
		}
	}()
	return func() {
		close(stop)
		<-stopped
	}
}

// movedBytes is the progress of a backup.
func (c *call) movedBytes(what string) func() string {
	return func() string { return fmt.Sprintf("%d MB %s", c.moved.Load()/1e6, what) }
}

// queuesNow lists all queues as the node that is asked knows them, without their stats.
func queuesNow(c *call) (all []api.Queue, err error) {
	return all, c.get("/api/queues?disable_stats=true&columns=name,vhost,leader,members", &all)
}

// queueProgress is the progress of work on all queues: how many of them are as they are to be.
func queueProgress(c *call, what string, done func(q *api.Queue) bool) func() string {
	return func() string {
		all, err := queuesNow(c)
		if err != nil {
			return ""
		}
		n := 0
		for i := range all {
			if done(&all[i]) {
				n++
			}
		}
		return fmt.Sprintf("%d of %d queues %s", n, len(all), what)
	}
}

// leaderProgress is the progress of moving leaders: how many each node has.
func leaderProgress(c *call) func() string {
	return func() string {
		all, err := queuesNow(c)
		if err != nil {
			return ""
		}
		count := map[string]int{}
		for _, q := range all {
			if q.Leader != nil {
				count[*q.Leader]++
			}
		}
		var words []string
		for _, node := range slices.Sorted(maps.Keys(count)) {
			words = append(words, fmt.Sprintf("%s %d", node, count[node]))
		}
		return "leaders: " + strings.Join(words, ", ")
	}
}

// memberProgress is the progress of a replica that receives the log of its queue.
func memberProgress(c *call, queue, node string) func() string {
	return func() string {
		var rows []api.Member
		if c.get(path("queues", "quorum", c.options.vhost, queue, "status"), &rows) != nil {
			return ""
		}
		last, has, state := uint64(0), uint64(0), "no replica yet"
		for _, m := range rows {
			if last = max(last, m.CommitIndex); m.Node == node {
				has, state = m.LastLogIndex, m.Membership
			}
		}
		return fmt.Sprintf("%s: entry %d of %d, %s", node, has, last, state)
	}
}

// importProgress is the progress of an import, of which queues take the longest.
func importProgress(c *call) func() string {
	return func() string {
		var page struct {
			Total int `json:"total_count"`
		}
		if c.get("/api/queues?disable_stats=true&columns=name&page=1&page_size=1", &page) != nil {
			return ""
		}
		return fmt.Sprintf("%d queues exist", page.Total)
	}
}
