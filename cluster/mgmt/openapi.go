package mgmt

import (
	"html/template"
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

// page shows the same to people: no script, no style, nothing from elsewhere.
func (d description) page(w *responder, _ *request) {
	w.Header().Set("Content-Type", "text/html; charset=utf-8")
	w.written(routesPage.Execute(w, describeAPI(d.resources())))
}

var routesPage = template.Must(template.New("").Parse(`<!DOCTYPE html>
<html lang="en">
<head><meta charset="utf-8"><title>HTTP API of quorate</title></head>
<body>
<h1>HTTP API of {{.Info.Title}} {{.Info.Version}}</h1>
<p>The tag is the least one that a user needs. Names in braces stand for one segment, in which / is written as %2F.
The same for tools: <a href="openapi.json">openapi.json</a>.</p>
<table>
<thead><tr><th scope="col">path</th><th scope="col">method</th><th scope="col">tag</th></tr></thead>
<tbody>{{range $path, $methods := .Paths}}{{range $method, $o := $methods}}
<tr><td><code>{{$path}}</code></td><td>{{$method}}</td><td>{{or $o.Tag "no login"}}</td></tr>{{end}}{{end}}
</tbody>
</table>
</body>
</html>
`))

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
