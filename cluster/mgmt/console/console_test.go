package console

import (
	"bytes"
	"crypto/sha256"
	"encoding/hex"
	"net/http"
	"net/http/httptest"
	"path"
	"regexp"
	"slices"
	"strings"
	"testing"
)

// vendored are the files of others, which are never changed, with their SHA-256: uPlot 1.6.32.
var vendored = map[string]string{
	"uplot.js":  "19c8d4c6ad88929a79f4ae49d6f7161566dfd0ba3d15cc495e974f787eb78f1f", // dist/uPlot.iife.min.js
	"uplot.css": "df630c6a8d6f8eeaff264b50f73ce5b114f646ffd9a0bb74f049b0a00135fa04", // dist/uPlot.min.css
	"uplot.txt": "8f989229699b4fe2f1a0432d0e9edc338a8a911e250e2d1b01ecd770a5f5b1bd", // LICENSE
}

// maxBytes is how long all files together may be: a browser loads them at once.
const maxBytes = 300_000

func TestVendored(t *testing.T) {
	for name, want := range vendored {
		f := Find(Folder + name)
		if f == nil {
			t.Errorf("%s is missing", name)
			continue
		}
		if sum := sha256.Sum256(f.body); hex.EncodeToString(sum[:]) != want {
			t.Errorf("%s has been changed", name)
		}
	}
}

// imports finds the modules that a module loads, and references what the page does.
var (
	imports    = regexp.MustCompile(`(?m)^import .* from '\./([^']*)';$`)
	references = regexp.MustCompile(`(?:src|href)="([^"]*)"`)
)

// Everything that is embedded is needed, and what is needed is embedded.
func TestFiles(t *testing.T) {
	needed := []string{"/", Folder + "uplot.txt"}
	for i := 0; i < len(needed); i++ {
		f := Find(needed[i])
		if f == nil {
			t.Errorf("%s is missing", needed[i])
			continue
		}
		var more []string
		for _, found := range references.FindAllSubmatch(f.body, -1) {
			if f.name == page {
				more = append(more, string(found[1]))
			}
		}
		for _, found := range imports.FindAllSubmatch(f.body, -1) {
			more = append(more, Folder+string(found[1]))
		}
		for _, name := range more {
			if !slices.Contains(needed, name) {
				needed = append(needed, name)
			}
		}
	}
	size := 0
	for at, f := range files {
		size += len(f.body)
		if !slices.Contains(needed, at) {
			t.Errorf("nothing loads %s", at)
		}
		if f.kind == "" {
			t.Errorf("%s has no type", at)
		}
	}
	if size > maxBytes {
		t.Errorf("%d bytes, at most %d are expected", size, maxBytes)
	}
	for _, name := range []string{"", "/console", "/console/", "/console/index.html", "/console/../console.go", "/console/static/app.js", "/console/nothing.js", "/app.js", "/api"} {
		if Find(name) != nil {
			t.Errorf("%q is served", name)
		}
	}
}

// drawings is the name of the kind of elements that drawings are made of, which nothing is loaded from.
const drawings = "http://www.w3.org/2000/svg"

// What the policy refuses is not there, nor are other ways to make markup of text.
func TestNoMarkup(t *testing.T) {
	inline := regexp.MustCompile(`(?i)<style|<script(?: [^>]*)?>[^<]|\son\w+=|\sstyle=|javascript:`)
	markup := regexp.MustCompile(`innerHTML|outerHTML|insertAdjacentHTML|document\.write|createContextualFragment|DOMParser|\beval\(|new Function|setTimeout\(['"]|localStorage|\.cookie|://`)
	for at, f := range files {
		if vendored[f.name] != "" || path.Ext(f.name) == ".svg" {
			continue
		}
		forbidden := markup
		if f.name == page {
			forbidden = inline
		}
		if found := forbidden.Find(bytes.ReplaceAll(f.body, []byte(drawings), nil)); found != nil {
			t.Errorf("%s has %q", at, found)
		}
	}
}

func TestServe(t *testing.T) {
	serve := func(method, tag string) *http.Response {
		r := httptest.NewRequest(method, "/", http.NoBody)
		r.Header.Set("If-None-Match", tag)
		w := httptest.NewRecorder()
		Find("/").Serve(w, r)
		return w.Result()
	}
	full := serve(http.MethodGet, "")
	tag := full.Header.Get("ETag")
	if full.StatusCode != http.StatusOK || full.ContentLength < 100 || len(tag) < 10 || full.Header.Get("Cache-Control") != "no-cache" || full.Header.Get("Content-Type") != "text/html; charset=utf-8" {
		t.Errorf("%d %v", full.StatusCode, full.Header)
	}
	if r := serve(http.MethodGet, tag); r.StatusCode != http.StatusNotModified || r.Header.Get("Content-Security-Policy") == "" {
		t.Errorf("the same again: %d %v", r.StatusCode, r.Header)
	}
	if r := serve(http.MethodHead, `"older"`); r.StatusCode != http.StatusOK || r.ContentLength != full.ContentLength {
		t.Errorf("HEAD: %d %v", r.StatusCode, r.Header)
	}
	policy := map[string]string{}
	for part := range strings.SplitSeq(full.Header.Get("Content-Security-Policy"), "; ") {
		name, value, _ := strings.Cut(part, " ")
		policy[name] = value
	}
	for name, want := range map[string]string{
		"default-src": "'none'", "script-src": "'self'", "style-src": "'self'", "img-src": "'self' data:", "connect-src": "'self'",
		"base-uri": "'none'", "form-action": "'none'", "frame-ancestors": "'none'", "require-trusted-types-for": "'script'", "trusted-types": "'none'",
	} {
		if policy[name] != want {
			t.Errorf("%s is %q, not %q", name, policy[name], want)
		}
		delete(policy, name)
	}
	if len(policy) > 0 {
		t.Errorf("the policy allows more: %v", policy)
	}
}
