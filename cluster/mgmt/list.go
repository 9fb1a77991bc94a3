package mgmt

import (
	"bytes"
	"cmp"
	"encoding/json"
	"fmt"
	"net/http"
	"net/url"
	"regexp"
	"slices"
	"strconv"
	"strings"

	"github.com/quorate/quorate/cluster/mgmt/api"
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
	rows, err := objects(items)
	if err != nil {
		w.failed(err)
		return
	}
	total := len(rows)
	if rows, err = filterByName(rows, q); err != nil {
		w.badRequest(err.Error())
		return
	}
	if key := q.Get("sort"); key != "" {
		sortBy(rows, strings.Split(key, "."), q.Get("sort_reverse") == "true")
	}
	page := api.Page{Items: rows, FilteredCount: len(rows), TotalCount: total}
	if q.Has("page") || q.Has("page_size") {
		if failure := cut(&page, q); failure != nil {
			w.answer(http.StatusBadRequest, failure)
			return
		}
	}
	if columns := q.Get("columns"); columns != "" {
		for i, row := range page.Items {
			page.Items[i] = choose(row, strings.Split(columns, ","))
		}
	}
	if q.Has("page") || q.Has("page_size") {
		w.answer(http.StatusOK, page)
		return
	}
	w.answer(http.StatusOK, orEmpty(page.Items))
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

func filterByName(rows []map[string]any, q url.Values) ([]map[string]any, error) {
	want := q.Get("name")
	matches := func(name string) bool { return strings.Contains(strings.ToLower(name), strings.ToLower(want)) }
	if q.Get("use_regex") == "true" {
		re, err := regexp.Compile(want)
		if err != nil {
			return nil, err
		}
		matches = re.MatchString
	}
	return slices.DeleteFunc(rows, func(row map[string]any) bool {
		name, _ := row["name"].(string)
		return want != "" && !matches(name)
	}), nil
}

// at finds a value under a path of keys; nil: there is none.
func at(row map[string]any, path []string) any {
	value := row[path[0]]
	if nested, ok := value.(map[string]any); ok && len(path) > 1 {
		return at(nested, path[1:])
	}
	if len(path) > 1 {
		return nil
	}
	return value
}

// sortBy sorts by one value, missing ones first, and then by name.
func sortBy(rows []map[string]any, path []string, reverse bool) {
	slices.SortStableFunc(rows, func(a, b map[string]any) int {
		c := compareJSON(at(a, path), at(b, path))
		if reverse {
			c = -c
		}
		return cmp.Or(c, compareJSON(a["name"], b["name"]))
	})
}

func compareJSON(a, b any) int {
	x, isNumber := a.(json.Number)
	if y, ok := b.(json.Number); ok && isNumber {
		m, _ := x.Float64()
		n, _ := y.Float64()
		return cmp.Compare(m, n)
	}
	return cmp.Compare(sortable(a), sortable(b))
}

func sortable(v any) string {
	if v == nil {
		return ""
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

// cut leaves one page of the items.
func cut(p *api.Page, q url.Values) *api.Failure {
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
	p.Page, p.PageSize, p.PageCount = number, size, max(1, (len(p.Items)+size-1)/size)
	if number > p.PageCount {
		return &api.Failure{Error: "page_out_of_range", Reason: fmt.Sprintf("Page out of range, page: %d page size: %d, len: %d", number, size, len(p.Items))}
	}
	p.Items = orEmpty(p.Items[(number-1)*size : min(number*size, len(p.Items))])
	p.ItemCount = len(p.Items)
	return nil
}

func orUndefined(q url.Values, name string) string {
	if !q.Has(name) {
		return "undefined"
	}
	return q.Get(name)
}
