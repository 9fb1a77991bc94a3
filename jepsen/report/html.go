package report

import (
	"bytes"
	_ "embed"
	"html/template"
)

// Names of the files of a report.
const (
	FileName = "report.json"
	PageName = "report.html"
	SVGName  = "report.svg"
)

//go:embed page.html
var pageText string

var page = template.Must(template.New("page").Parse(pageText))

// HTML returns the page for readers: one file without scripts.
func (r Report) HTML() ([]byte, error) {
	outcome := "passed"
	if !r.Passed {
		outcome = "failed"
	}
	found := append([]string{}, r.Problems...)
	for _, v := range r.Verdicts {
		found = append(found, v.Problems...)
	}
	var b bytes.Buffer
	err := page.Execute(&b, struct {
		Report
		Outcome string
		Found   []string
		Picture template.HTML
	}{r, outcome, found, template.HTML(r.SVG())}) // SVG escapes its texts
	return b.Bytes(), err
}

// Files returns the files of a report by their names.
func (r Report) Files() (map[string][]byte, error) {
	text, err := r.JSON()
	if err != nil {
		return nil, err
	}
	html, err := r.HTML()
	return map[string][]byte{FileName: text, PageName: html, SVGName: r.SVG()}, err
}
