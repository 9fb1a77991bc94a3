package mgmt

import (
	"bufio"
	"bytes"
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"maps"
	"net/http"
	"net/url"
	"os"
	"reflect"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/quorate/quorate/cluster/mgmt/api"
	"github.com/quorate/quorate/fsm"
	"github.com/quorate/quorate/fsm/catalog"
	"github.com/quorate/quorate/fsm/pattern"
	"github.com/quorate/quorate/proto/logpb"
)

// proposeWait bounds how long a change of the catalog may take.
const proposeWait = 5 * time.Second

// responder answers one request.
type responder struct {
	http.ResponseWriter
	log    *slog.Logger
	script bool // the browser must not ask its user for a password: the page does
}

// answer writes a JSON value. A failure is sent with its length, so that it is whole for a client whose body is still
// being read.
func (w *responder) answer(status int, body any) {
	w.Header().Set("Content-Type", "application/json")
	if status < http.StatusBadRequest {
		w.WriteHeader(status)
		w.written(json.NewEncoder(w).Encode(body))
		return
	}
	var text bytes.Buffer
	w.written(json.NewEncoder(&text).Encode(body))
	w.Header().Set("Content-Length", strconv.Itoa(text.Len()))
	w.WriteHeader(status)
	_, err := text.WriteTo(w)
	w.written(err)
}

// export answers with JSON whose texts are as they were written: others, which may be shown somewhere, have < and >
// as escapes.
func (w *responder) export(body any) {
	w.Header().Set("Content-Type", "application/json")
	w.WriteHeader(http.StatusOK)
	e := json.NewEncoder(w)
	e.SetEscapeHTML(false)
	w.written(e.Encode(body))
}

// written notes why an answer is not.
func (w *responder) written(err error) {
	if err != nil {
		w.log.Debug("answer not written", "error", err)
	}
}

func (w *responder) badRequest(reason string) {
	w.answer(http.StatusBadRequest, api.Failure{Error: "bad_request", Reason: reason})
}

func (w *responder) notFound() {
	w.answer(http.StatusNotFound, api.Failure{Error: "Object Not Found", Reason: "Not Found"})
}

func (w *responder) noVHost() {
	w.answer(http.StatusNotFound, api.Failure{Error: "not_found", Reason: "vhost_not_found"})
}

// failed answers a request that ended with an error: the caller's fault if it is a refusal,
// otherwise the cluster's.
func (w *responder) failed(err error) {
	var refusal *fsm.Refusal
	switch {
	case !errors.As(err, &refusal):
		w.unavailable(err)
	case refusal.Kind == fsm.NotFoundKind:
		w.answer(http.StatusNotFound, api.Failure{Error: "not_found", Reason: refusal.Text})
	case slices.Contains([]fsm.Kind{fsm.AccessRefused, fsm.NotAllowed, fsm.NoVHost, fsm.NoAccess, fsm.LimitReached}, refusal.Kind):
		w.unauthorized("not_authorised", "Access refused.")
	default:
		w.badRequest(refusal.Text)
	}
}

// result answers a request with what came of it.
func (w *responder) result(body any, err error) {
	if err != nil {
		w.failed(err)
		return
	}
	w.answer(http.StatusOK, body)
}

func (w *responder) unavailable(err error) {
	w.answer(http.StatusServiceUnavailable, api.Failure{Error: "unavailable", Reason: err.Error()})
}

func (w *responder) unauthorized(what, reason string) {
	if !w.script {
		w.Header().Set("WWW-Authenticate", `Basic realm="quorate"`)
	}
	w.answer(http.StatusUnauthorized, api.Failure{Error: what, Reason: reason})
}

// invalid answers a parameter that was refused, in the form that clients show.
func (w *responder) invalid(err error) {
	var refusal *fsm.Refusal
	if errors.As(err, &refusal) && refusal.Kind == fsm.Precondition {
		w.badRequest("Validation failed\n\n" + refusal.Text + "\n")
		return
	}
	w.failed(err)
}

// propose commits catalog commands and returns the first refusal among the results.
func propose(ctx context.Context, to Catalog, commands ...*logpb.CatalogCommand) error {
	ctx, cancel := context.WithTimeout(ctx, proposeWait)
	defer cancel()
	results, err := to.Propose(ctx, commands...)
	if err != nil {
		return err
	}
	for _, r := range results {
		if err := catalog.Refused(r); err != nil {
			return err
		}
	}
	return nil
}

// changed answers a PUT or DELETE; created: it has created something.
func (w *responder) changed(err error, created bool) {
	switch {
	case err != nil:
		w.failed(err)
	case created:
		w.WriteHeader(http.StatusCreated)
	default:
		w.WriteHeader(http.StatusNoContent)
	}
}

// body is the JSON object in a request. Keys with the value null count as missing.
type body map[string]any

// body reads the request's object, which needs some keys, or answers the request. An empty body is an empty object.
func (w *responder) body(r *request, keys ...string) (body, bool) {
	raw, err := io.ReadAll(r.Body)
	if err != nil {
		w.unread(err)
		return nil, false
	}
	var value any = map[string]any{}
	if len(bytes.TrimSpace(raw)) > 0 {
		if value, err = decode(raw); err != nil {
			w.badRequest("not_json")
			return nil, false
		}
	}
	switch v := value.(type) {
	case map[string]any:
		maps.DeleteFunc(v, func(_ string, value any) bool { return value == nil })
		r.auditBody(v)
		return v, !w.missing(v, keys...)
	case string:
		w.badRequest("invalid payload: the request body JSON-decoded to a string. Is the input doubly-JSON-encoded?")
	default:
		w.badRequest("invalid payload: the request body is not a JSON object")
	}
	return nil, false
}

// bodyIn is body for what belongs to the vhost of the path, which the user must see.
func (w *responder) bodyIn(r *request, keys ...string) (body, bool) {
	if !w.opens(r) {
		return nil, false
	}
	return w.body(r, keys...)
}

// unread answers a request whose body could not be read.
func (w *responder) unread(err error) {
	if errors.Is(err, os.ErrDeadlineExceeded) {
		w.answer(http.StatusRequestTimeout, api.Failure{Error: "request_timeout", Reason: "timed out reading the request body"})
		return
	}
	var long *http.MaxBytesError
	if errors.As(err, &long) {
		w.answer(http.StatusRequestEntityTooLarge, api.Failure{Error: "payload_too_large", Reason: fmt.Sprintf("the body is longer than %d bytes", long.Limit)})
		return
	}
	w.badRequest("the request body is truncated")
}

// mark is the byte order mark that some editors and shells write before JSON.
const mark = "\ufeff"

// jsonIn reads JSON, without a byte order mark before it.
func jsonIn(from io.Reader) *json.Decoder {
	in := bufio.NewReader(from)
	if start, _ := in.Peek(len(mark)); string(start) == mark {
		_, _ = in.Discard(len(mark)) // which is there
	}
	return json.NewDecoder(in)
}

// decode reads one JSON value and keeps numbers as written.
func decode(raw []byte) (any, error) {
	d := jsonIn(bytes.NewReader(raw))
	d.UseNumber()
	var value any
	if err := d.Decode(&value); err != nil {
		return nil, err
	}
	if _, err := d.Token(); err != io.EOF {
		return nil, errors.New("more than one value")
	}
	return value, nil
}

// missing answers a body that lacks keys.
func (w *responder) missing(b body, keys ...string) bool {
	var list []string
	for _, key := range keys {
		if _, ok := b[key]; !ok {
			list = append(list, "{key_missing,"+key+"}")
		}
	}
	if len(list) > 0 {
		w.badRequest("[" + strings.Join(list, ",") + "]")
	}
	return len(list) > 0
}

// valueIn returns a value of the body; zero if it is missing.
func valueIn[T any](b body, key, what string) (T, error) {
	v, ok := b[key].(T)
	if !ok && b[key] != nil {
		return v, fsm.Refuse(fsm.Precondition, fmt.Sprintf("%s should be %s, actually was %v", key, what, b[key]))
	}
	return v, nil
}

// text returns a string of the body; empty if it is missing.
func (b body) text(key string) (string, error) { return valueIn[string](b, key, "a string") }

// flag returns a boolean of the body, which may be given as a string; def if it is missing.
func (b body) flag(key string, def bool) (bool, error) {
	switch v := b[key]; v {
	case nil:
		return def, nil
	case true, "true":
		return true, nil
	case false, "false":
		return false, nil
	default:
		return false, fsm.Refuse(fsm.Precondition, fmt.Sprintf("[\"not_boolean\",%q]", fmt.Sprint(v)))
	}
}

// object returns an object of the body; empty if it is missing.
func (b body) object(key string) (map[string]any, error) {
	return valueIn[map[string]any](b, key, "an object")
}

// words returns a list of tags: an array of strings, or a string with commas.
func (b body) words(key string) ([]string, error) {
	var list []string
	add := func(word string) {
		if word = strings.TrimSpace(word); word != "" {
			list = append(list, word)
		}
	}
	switch v := b[key].(type) {
	case nil:
	case string:
		for word := range strings.SplitSeq(v, ",") {
			add(word)
		}
	case []any:
		for _, e := range v {
			word, ok := e.(string)
			if !ok {
				return nil, fsm.Refuse(fsm.Precondition, fmt.Sprintf("%s should be strings, actually was %v", key, e))
			}
			add(word)
		}
	default:
		return nil, fsm.Refuse(fsm.Precondition, fmt.Sprintf("%s should be a string or a list, actually was %v", key, v))
	}
	return list, nil
}

// read decodes the request's body, which may be empty, or answers the request.
func (w *responder) read(r *request, to any) bool {
	d := jsonIn(r.Body)
	d.DisallowUnknownFields()
	if err := d.Decode(to); err != nil && err != io.EOF {
		w.badRequest("not_json")
		return false
	}
	return true
}

// described lists what describe makes of rows.
func described[T, R any](rows []T, describe func(T) R) []R {
	list := make([]R, len(rows))
	for i, row := range rows {
		list[i] = describe(row)
	}
	return list
}

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
	all, err := rowsOf(rows, q.Get("columns"))
	switch {
	case err != nil:
		w.failed(err)
	case l.page == nil:
		w.answer(http.StatusOK, all)
	default:
		l.page.Items = all
		w.answer(http.StatusOK, l.page)
	}
}

// rowsOf returns what JSON shows of rows: the named columns; empty: all.
func rowsOf[R any](rows []R, columns string) (any, error) {
	if columns == "" {
		return orEmpty(rows), nil
	}
	paths, all := strings.Split(columns, ","), make([]map[string]any, len(rows))
	for i := range rows {
		row, err := firstOf(reflect.ValueOf(&rows[i]).Elem(), paths)
		if err != nil {
			return nil, err
		}
		all[i] = choose(row, paths)
	}
	return all, nil
}

// firstOf returns those of the fields of a row that some paths of keys begin with, as JSON shows them.
func firstOf(row reflect.Value, paths []string) (map[string]any, error) {
	all := map[string]any{}
	if row.Kind() != reflect.Struct {
		o, err := object(row.Interface())
		all, _ = o.(map[string]any)
		return all, err
	}
	for _, path := range paths {
		name, _, _ := strings.Cut(path, ".")
		f, known := fieldsOf(row.Type())[name]
		if _, done := all[name]; done || !known {
			continue
		}
		v, err := row.FieldByIndexErr(f.index)
		if err != nil || f.omits(v) { // of an embedded object that is missing
			continue
		}
		value := v.Interface()
		if !isPlain(v.Type()) {
			if value, err = object(value); err != nil {
				return nil, err
			}
		}
		all[name] = value
	}
	return all, nil
}

// isPlain reports whether JSON has no keys within values of a type.
func isPlain(t reflect.Type) bool {
	for t.Kind() == reflect.Pointer || t.Kind() == reflect.Slice {
		if t.Implements(marshaler) {
			return false // it may write an object
		}
		t = t.Elem()
	}
	return t.Kind() < reflect.Array || t.Kind() == reflect.String
}

var marshaler = reflect.TypeFor[json.Marshaler]()

// object converts a value into what JSON makes of it.
func object(value any) (o any, err error) {
	raw, err := json.Marshal(value)
	if err != nil {
		return nil, err
	}
	d := json.NewDecoder(bytes.NewReader(raw))
	d.UseNumber()
	return o, d.Decode(&o)
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
			f, ok := fieldsOf(v.Type())[path[0]]
			if !ok {
				return nil
			}
			field, err := v.FieldByIndexErr(f.index)
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

// field is a field of a type, and whether JSON leaves it out.
type field struct {
	index               []int
	omitEmpty, omitZero bool
}

// omits reports whether JSON leaves a value out.
func (f field) omits(v reflect.Value) bool {
	switch v.Kind() {
	case reflect.Array, reflect.Map, reflect.Slice, reflect.String:
		if f.omitEmpty && v.Len() == 0 {
			return true
		}
	case reflect.Struct: // is never empty
	default:
		if f.omitEmpty && v.IsZero() {
			return true
		}
	}
	return f.omitZero && v.IsZero()
}

// fieldsOf finds the fields of a type by the names that they have in JSON.
func fieldsOf(t reflect.Type) map[string]field {
	if known, ok := fields.Load(t); ok {
		return known.(map[string]field)
	}
	byName := map[string]field{}
	for _, f := range reflect.VisibleFields(t) {
		if name, rest, _ := strings.Cut(f.Tag.Get("json"), ","); name != "" && name != "-" {
			options := strings.Split(rest, ",")
			byName[name] = field{f.Index, slices.Contains(options, "omitempty"), slices.Contains(options, "omitzero")}
		}
	}
	fields.Store(t, byName)
	return byName
}

// compareValues compares what valueAt returns: what is missing comes before numbers, and these before texts.
func compareValues(a, b any) int {
	x, isNumber := a.(float64)
	if y, also := b.(float64); isNumber && also {
		return cmp.Compare(x, y)
	}
	return cmp.Or(cmp.Compare(rank(a), rank(b)), cmp.Compare(sortable(a), sortable(b)))
}

func rank(v any) int {
	switch v.(type) {
	case nil:
		return 0
	case float64:
		return 1
	}
	return 2
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
	from, to, failure := l.bounds(q)
	if failure == nil {
		l.items = l.items[from:to]
	}
	return failure
}

// bounds says which of the items, in their order, are the page that was asked for: all, if none was.
func (l *listing[T]) bounds(q url.Values) (from, to int, failure *api.Failure) {
	if !q.Has("page") && !q.Has("page_size") {
		return 0, len(l.items), nil
	}
	number, size := 1, defaultPage
	for name, value := range map[string]*int{"page": &number, "page_size": &size} {
		if !q.Has(name) {
			continue
		}
		n, err := strconv.Atoi(q.Get(name))
		if err != nil {
			return 0, 0, &api.Failure{Error: "bad_request", Reason: "Pagination parameters are invalid"}
		}
		*value = n
	}
	if number < 1 || size < 1 || size > largestPage {
		return 0, 0, &api.Failure{Error: "invalid_pagination_parameters", Reason: fmt.Sprintf(
			"Invalid pagination parameters: page number %s, page size %s", orUndefined(q, "page"), orUndefined(q, "page_size"))}
	}
	pages := max(1, (len(l.items)+size-1)/size)
	if number > pages {
		return 0, 0, &api.Failure{Error: "page_out_of_range", Reason: fmt.Sprintf("Page out of range, page: %d page size: %d, len: %d", number, size, len(l.items))}
	}
	from, to = (number-1)*size, min(number*size, len(l.items))
	l.page = &api.Page{FilteredCount: l.filtered, TotalCount: l.total, Page: number, PageSize: size, PageCount: pages, ItemCount: to - from}
	return from, to, nil
}

func orUndefined(q url.Values, name string) string {
	if !q.Has(name) {
		return "undefined"
	}
	return q.Get(name)
}
