package api

// OpenAPI is answered by GET /api/openapi.json: the paths of the API, in the form of OpenAPI 3.1.
type OpenAPI struct {
	OpenAPI    string                          `json:"openapi"`
	Info       OpenAPIInfo                     `json:"info"`
	Paths      map[string]map[string]Operation `json:"paths"` // by path and method in lower case
	Components OpenAPIComponents               `json:"components"`
}

// OpenAPIInfo names the API.
type OpenAPIInfo struct {
	Title   string `json:"title"`
	Version string `json:"version"`
}

// Operation is one method of a path. Tag is the least tag of a user who may use it; empty: no login
// is needed.
type Operation struct {
	Tag         string                 `json:"x-user-tag,omitempty"`
	Parameters  []OpenAPIParameter     `json:"parameters,omitempty"`
	RequestBody *OpenAPIBody           `json:"requestBody,omitempty"`
	Responses   map[string]OpenAPIText `json:"responses"`
	Security    []map[string][]string  `json:"security,omitempty"`
}

// OpenAPIParameter is a name in a path.
type OpenAPIParameter struct {
	Name     string        `json:"name"`
	In       string        `json:"in"`
	Required bool          `json:"required"`
	Schema   OpenAPISchema `json:"schema"`
}

// OpenAPISchema is the type of a value.
type OpenAPISchema struct {
	Type string `json:"type"`
}

// OpenAPIBody is what a request carries.
type OpenAPIBody struct {
	Content map[string]OpenAPIMedia `json:"content"`
}

// OpenAPIMedia is a form of a body.
type OpenAPIMedia struct {
	Schema OpenAPISchema `json:"schema"`
}

// OpenAPIText describes an answer.
type OpenAPIText struct {
	Description string `json:"description"`
}

// OpenAPIComponents holds what operations refer to.
type OpenAPIComponents struct {
	SecuritySchemes map[string]SecurityScheme `json:"securitySchemes"`
}

// SecurityScheme is a way to log in.
type SecurityScheme struct {
	Type   string `json:"type"`
	Scheme string `json:"scheme"`
}
