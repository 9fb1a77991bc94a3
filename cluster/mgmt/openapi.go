package mgmt

import (
	"net/http"
	"strings"

	"github.com/quorate/quorate/cluster/mgmt/api"
)

// openAPIPath is where the description of the API is.
const openAPIPath = "/api/openapi.json"

// tagNames are the levels by the tag that they are called after.
var tagNames = map[level]string{management: "management", policymaker: "policymaker", monitoring: "monitoring", administrator: "administrator"}

// description serves the table of routes as an OpenAPI document.
type description struct{ resources func() []resource }

func (d description) get(w *responder, _ *request) {
	w.answer(http.StatusOK, describeAPI(d.resources()))
}

// describeAPI describes the routes: their parameters, who may use them, and whether they take a body.
func describeAPI(resources []resource) api.OpenAPI {
	doc := api.OpenAPI{
		OpenAPI: "3.1.0", Info: api.OpenAPIInfo{Title: "quorate", Version: api.ProductVersion}, Paths: map[string]map[string]api.Operation{},
		Components: api.OpenAPIComponents{SecuritySchemes: map[string]api.SecurityScheme{"basic": {Type: "http", Scheme: "basic"}}},
	}
	for _, x := range resources {
		methods := map[string]api.Operation{}
		for _, e := range x.endpoints {
			o := api.Operation{Tag: tagNames[e.need], Responses: map[string]api.OpenAPIText{
				"2XX": {Description: "success"}, "4XX": {Description: "refused; the body is an error and its reason"},
			}}
			if e.need != anybody {
				o.Security = []map[string][]string{{"basic": {}}}
			}
			for segment := range strings.SplitSeq(x.path, "/") {
				if name, ok := strings.CutPrefix(segment, "{"); ok {
					o.Parameters = append(o.Parameters, api.OpenAPIParameter{Name: strings.TrimSuffix(name, "}"), In: "path", Required: true, Schema: api.OpenAPISchema{Type: "string"}})
				}
			}
			if e.method == http.MethodPut || e.method == http.MethodPost || e.method == http.MethodPatch {
				o.RequestBody = &api.OpenAPIBody{Content: map[string]api.OpenAPIMedia{"application/json": {Schema: api.OpenAPISchema{Type: "object"}}}}
			}
			methods[strings.ToLower(e.method)] = o
		}
		doc.Paths[x.path] = methods
	}
	return doc
}
