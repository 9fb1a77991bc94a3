// Package console holds the web console: the page at / of the HTTP listener, and the files it loads.
// They are part of the program, so a console works wherever its node can be reached, and is always as
// old as its node. It shows and changes nothing by itself: the page in the browser does that through
// the HTTP API, with the credentials that its user enters.
package console

import (
	"bytes"
	"crypto/sha256"
	"embed"
	"encoding/base64"
	"net/http"
	"path"
	"strings"
	"time"
)

//go:embed static
var static embed.FS

// Folder is the path below which the files of the page are.
const Folder = "/console/"

// page is the file that is served at /.
const page = "index.html"

// policy is what the browser lets the page do: it loads files and asks the API of this node, and
// nothing else. Scripts cannot turn text into elements (trusted types), so that the name of an object
// or the body of a message stays text, whatever is in it.
const policy = "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' data:; connect-src 'self'; " +
	"base-uri 'none'; form-action 'none'; frame-ancestors 'none'; require-trusted-types-for 'script'; trusted-types 'none'"

// types are the content types of files, by the end of the name. Those of the system may differ.
var types = map[string]string{
	".html": "text/html; charset=utf-8",
	".css":  "text/css; charset=utf-8",
	".js":   "text/javascript; charset=utf-8",
	".svg":  "image/svg+xml",
	".txt":  "text/plain; charset=utf-8",
}

// File is a file of the console.
type File struct {
	name, kind, tag string
	body            []byte
}

// files are all files by their paths in URLs.
var files = load()

func load() map[string]*File {
	entries, err := static.ReadDir("static")
	if err != nil {
		panic(err) // it is in the program
	}
	all := map[string]*File{}
	for _, e := range entries {
		body, err := static.ReadFile("static/" + e.Name())
		if err != nil {
			panic(err)
		}
		sum := sha256.Sum256(body)
		f := &File{e.Name(), types[path.Ext(e.Name())], `"` + base64.RawURLEncoding.EncodeToString(sum[:12]) + `"`, body}
		if e.Name() == page {
			all["/"] = f
		} else {
			all[Folder+e.Name()] = f
		}
	}
	return all
}

// Find returns the file with a path; nil: there is none.
func Find(path string) *File {
	if path != "/" && !strings.HasPrefix(path, Folder) {
		return nil
	}
	return files[path]
}

// Serve answers a GET or HEAD for the file. A browser may keep it, and asks each time whether it is
// still the one that the node has.
func (f *File) Serve(w http.ResponseWriter, r *http.Request) {
	h := w.Header()
	h.Set("Cache-Control", "no-cache")
	h.Set("Content-Security-Policy", policy)
	h.Set("Content-Type", f.kind)
	h.Set("Cross-Origin-Opener-Policy", "same-origin")
	h.Set("ETag", f.tag)
	h.Del("Vary") // the same for everybody
	http.ServeContent(w, r, f.name, time.Time{}, bytes.NewReader(f.body))
}
