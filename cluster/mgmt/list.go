package mgmt

import (
	"bytes"
	"cmp"
	"encoding/json"
	"fmt"
	"net/http"
	"net/url"
	"reflect"
	"slices"
	"strconv"
	"strings"
	"sync"

	"github.com/quorate/quorate/cluster/mgmt/api"
	"github.com/quorate/quorate/fsm/pattern"
)

// Page sizes.
const (
	defaultPage = 100
	largestPage = 500
)

// list answers with a list in the form that the query asks for: filtered by name, sorted, reduced
// to some columns, and cut to a page.
func list[T any](w *responder, r *request, items []T) {
	q := r.URL.Query()
	if !slices.ContainsFunc([]string{"name", "sort", "columns", "page", "page_size"}, q.Has) {
		w.answer(http.StatusOK, orEmpty(items))
		return
	}
	l := listing[T]{items: items, total: len(items)}
	if w.choose(l.filter(q, func(x *T) string { name, _ := valueAt(reflect.ValueOf(x), []string{"name"}).(string); return name })) {
		if key := q.Get("sort"); key != "" {
			path := strings.Split(key, ".")
			l.sort(q, func(x *T) any { return valueAt(reflect.ValueOf(x), path) }, func(x *T) any { return valueAt(reflect.ValueOf(x), []string{"name"}) })
		}
		if w.choose(l.cut(q)) {
			answerListing(w, q, &l, l.items)
		}
	}
}

// listing is a list on its way to a page.
type listing[T any] struct {
	items           []T
	total, filtered int       // how many there were, and how many of them the name let through
	page            *api.Page // nil: no page was asked for
}

// choose answers a choice that is not possible, and reports whether it is.
func (w *responder) choose(failure *api.Failure) bool {
	if failure != nil {
		w.answer(http.StatusBadRequest, failure)
	}
	return failure == nil
}

// answerListing answers with the rows of a listing.
func answerListing[T, R any](w *responder, q url.Values, l *listing[T], rows []R) {
	all, err := objects(rows)
	if err != nil {
		w.failed(err)
		return
	}
	if columns := q.Get("columns"); columns != "" {
		for i, row := range all {
			all[i] = choose(row, strings.Split(columns, ","))
		}
	}
	if l.page == nil {
		w.answer(http.StatusOK, orEmpty(all))
		return
	}
	l.page.Items = orEmpty(all)
	w.answer(http.StatusOK, l.page)
}

// objects converts items into their JSON objects.
func objects[T any](items []T) ([]map[string]any, error) {
	raw, err := json.Marshal(items)
	if err != nil {
		return nil, err
	}
	var rows []map[string]any
	d := json.NewDecoder(bytes.NewReader(raw))
	d.UseNumber()
	return rows, d.Decode(&rows)
}

// filter keeps the items whose names match.
func (l *listing[T]) filter(q url.Values, nameOf func(*T) string) *api.Failure {
	want := q.Get("name")
	matches := func(name string) bool { return strings.Contains(strings.ToLower(name), strings.ToLower(want)) }
	if q.Get("use_regex") == "true" {
		p, err := pattern.Compile(want)
		if err != nil {
			return &api.Failure{Error: "bad_request", Reason: err.Error()}
		}
		matches = p.Match
	}
	if want != "" {
		l.items = slices.DeleteFunc(slices.Clone(l.items), func(x T) bool { return !matches(nameOf(&x)) })
	}
	l.filtered = len(l.items)
	return nil
}

// sort sorts by one value, missing ones first, and then by name.
func (l *listing[T]) sort(q url.Values, valueOf, nameOf func(*T) any) {
	type row struct {
		value, name any
		item        T
	}
	rows := make([]row, len(l.items))
	for i := range l.items {
		rows[i] = row{valueOf(&l.items[i]), nameOf(&l.items[i]), l.items[i]}
	}
	reverse := q.Get("sort_reverse") == "true"
	slices.SortStableFunc(rows, func(a, b row) int {
		c := compareValues(a.value, b.value)
		if reverse {
			c = -c
		}
		return cmp.Or(c, compareValues(a.name, b.name))
	})
	l.items = make([]T, len(rows))
	for i := range rows {
		l.items[i] = rows[i].item
	}
}

// valueAt finds the value that JSON would have under a path of keys: a string, a float64, or
// something else as text; nil: there is none.
func valueAt(v reflect.Value, path []string) any {
	for {
		switch {
		case !v.IsValid():
			return nil
		case v.Kind() == reflect.Pointer || v.Kind() == reflect.Interface:
			v = v.Elem()
			continue
		case len(path) == 0:
			return plain(v)
		case v.Kind() == reflect.Struct:
			index, ok := fieldsOf(v.Type())[path[0]]
			if !ok {
				return nil
			}
			field, err := v.FieldByIndexErr(index)
			if err != nil { // of an embedded object that is missing
				return nil
			}
			v = field
		case v.Kind() == reflect.Map && v.Type().Key().Kind() == reflect.String:
			v = v.MapIndex(reflect.ValueOf(path[0]).Convert(v.Type().Key()))
		default:
			return nil
		}
		path = path[1:]
	}
}

// plain is a value as it is compared.
func plain(v reflect.Value) any {
	switch {
	case v.CanInt():
		return float64(v.Int())
	case v.CanUint():
		return float64(v.Uint())
	case v.CanFloat():
		return v.Float()
	case v.Kind() == reflect.String:
		return v.String()
	}
	return fmt.Sprint(v.Interface())
}

// fields caches fieldsOf.
var fields sync.Map

// fieldsOf finds the fields of a type by the names that they have in JSON.
func fieldsOf(t reflect.Type) map[string][]int {
	if known, ok := fields.Load(t); ok {
		return known.(map[string][]int)
	}
	byName := map[string][]int{}
	for _, f := range reflect.VisibleFields(t) {
		if name, _, _ := strings.Cut(f.Tag.Get("json"), ","); name != "" && name != "-" {
			byName[name] = f.Index
		}
	}
	fields.Store(t, byName)
	return byName
}

// compareValues compares what valueAt returns.
func compareValues(a, b any) int {
	x, isNumber := a.(float64)
	if y, ok := b.(float64); ok && isNumber {
		return cmp.Compare(x, y)
	}
	return cmp.Compare(sortable(a), sortable(b))
}

func sortable(v any) string {
	switch v := v.(type) {
	case nil:
		return ""
	case string:
		return v
	}
	return fmt.Sprint(v)
}

// choose returns the named columns of a row. A name with dots is a value
// within an object.
func choose(row map[string]any, columns []string) map[string]any {
	chosen := map[string]any{}
	for _, column := range columns {
		from, to := row, chosen
		path := strings.Split(column, ".")
		for _, key := range path[:len(path)-1] {
			nested, ok := from[key].(map[string]any)
			if !ok {
				break
			}
			if _, ok := to[key].(map[string]any); !ok {
				to[key] = map[string]any{}
			}
			from, to = nested, to[key].(map[string]any)
		}
		last := path[len(path)-1]
		if value, ok := from[last]; ok {
			to[last] = value
		}
	}
	return chosen
}

// cut leaves one page of the items, if one was asked for.
func (l *listing[T]) cut(q url.Values) *api.Failure {
	if !q.Has("page") && !q.Has("page_size") {
		return nil
	}
	number, size := 1, defaultPage
	for name, value := range map[string]*int{"page": &number, "page_size": &size} {
		if !q.Has(name) {
			continue
		}
		n, err := strconv.Atoi(q.Get(name))
		if err != nil {
			return &api.Failure{Error: "bad_request", Reason: "Pagination parameters are invalid"}
		}
		*value = n
	}
	if number < 1 || size < 1 || size > largestPage {
		return &api.Failure{Error: "invalid_pagination_parameters", Reason: fmt.Sprintf(
			"Invalid pagination parameters: page number %s, page size %s", orUndefined(q, "page"), orUndefined(q, "page_size"))}
	}
	pages := max(1, (len(l.items)+size-1)/size)
	if number > pages {
		return &api.Failure{Error: "page_out_of_range", Reason: fmt.Sprintf("Page out of range, page: %d page size: %d, len: %d", number, size, len(l.items))}
	}
	l.items = l.items[(number-1)*size : min(number*size, len(l.items))]
	l.page = &api.Page{FilteredCount: l.filtered, TotalCount: l.total, Page: number, PageSize: size, PageCount: pages, ItemCount: len(l.items)}
	return nil
}

func orUndefined(q url.Values, name string) string {
	if !q.Has(name) {
		return "undefined"
	}
	return q.Get(name)
}
