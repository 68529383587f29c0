package page

import (
	"bytes"
	"compress/gzip"
	"crypto/sha256"
	"encoding/hex"
	"io"
	"maps"
	"net/http"
	"net/http/httptest"
	"path"
	"regexp"
	"slices"
	"strings"
	"testing"
)

func TestFilesAreSmall(t *testing.T) {
	const most, mostCompressed = 224 << 10, 85 << 10
	size, compressed := 0, 0
	for _, f := range files() {
		size += len(f.text)
		compressed += len(f.compressed)
	}
	if size > most || compressed > mostCompressed {
		t.Errorf("%d bytes, %d compressed; want at most %d and %d", size, compressed, most, mostCompressed)
	}
	t.Logf("%d bytes, %d compressed", size, compressed)
}

func TestFilesNameNoOtherSite(t *testing.T) {
	foreign := regexp.MustCompile(`(?i)https?:|\bwss?:|["'(]//|url\(`)
	for name, f := range files() {
		if found := foreign.Find(f.text); found != nil && f.contentType != contentTypes[".png"] {
			t.Errorf("%s has the URL %q", name, found)
		}
	}
}

// Scripts that would need an exception in the content security policy. The browser test
// shows that the policy forbids them; this one finds them in code that it does not run.
func TestScriptsWriteNoHTML(t *testing.T) {
	forbidden := regexp.MustCompile(`innerHTML|outerHTML|insertAdjacentHTML|document\.write|\beval\(|new Function|setAttribute\('style'|srcdoc|\.cookie`)
	for name, f := range files() {
		if found := forbidden.Find(f.text); found != nil && (path.Ext(name) == ".js" || path.Ext(name) == ".html") {
			t.Errorf("%s has %q", name, found)
		}
	}
}

// The chart library is the minified file of the npm package uplot, version 1.6.32, without
// its first line, a comment with a URL.
func TestVendoredFilesAreThoseOfThePackage(t *testing.T) {
	const firstLine = "/*! https://github.com/leeoniya/uPlot (v1.6.32) */\n"
	for name, want := range map[string]string{
		"vendor/uplot.js": "19c8d4c6ad88929a79f4ae49d6f7161566dfd0ba3d15cc495e974f787eb78f1f",
		"vendor/LICENSE":  "8f989229699b4fe2f1a0432d0e9edc338a8a911e250e2d1b01ecd770a5f5b1bd",
	} {
		text := files()[name].text
		if name == "vendor/uplot.js" {
			text = append([]byte(firstLine), text...)
		}
		if sum := sha256.Sum256(text); hex.EncodeToString(sum[:]) != want {
			t.Errorf("%s: SHA-256 %x, want %s", name, sum, want)
		}
	}
}

// Each import and link of a file is a file, so that no module is missing at run time.
func TestFilesReferToFiles(t *testing.T) {
	imports := regexp.MustCompile(`from '\./([^']+)'|(?:href|src)="page/([^"]+)"`)
	for name, f := range files() {
		for _, m := range imports.FindAllSubmatch(f.text, -1) {
			if target := string(m[1]) + string(m[2]); files()[target] == nil {
				t.Errorf("%s refers to %s, which does not exist", name, target)
			}
		}
	}
}

// Texts of scripts: strings.js has a line for each.
var (
	translation = regexp.MustCompile(`(?m)^\t'((?:\\.|[^'\\])*)': '((?:\\.|[^'\\])*)',$`)
	translated  = regexp.MustCompile(`\btn?\(\s*'((?:\\.|[^'\\])*)'|data-(?:text|title|label)="([^"]+)"`)
	hole        = regexp.MustCompile(`\{\w+\}`)
)

// scripts are the files with texts that a reader sees.
func scripts() map[string]string {
	all := map[string]string{}
	for name, f := range files() {
		if (path.Ext(name) == ".js" || path.Ext(name) == ".html") && name != "strings.js" && !strings.HasPrefix(name, "vendor/") {
			all[name] = string(f.text)
		}
	}
	return all
}

// Every text is in the table of Chinese ones, with the same holes, and the table has no others.
func TestEveryTextIsInBothLanguages(t *testing.T) {
	table, _, _ := strings.Cut(string(files()["strings.js"].text), "export const words")
	chinese := map[string]string{}
	for _, m := range translation.FindAllStringSubmatch(table, -1) {
		if chinese[m[1]] != "" {
			t.Errorf("strings.js has %q twice", m[1])
		}
		chinese[m[1]] = m[2]
	}
	if lines := strings.Count(table, "': '"); lines != len(chinese) || lines < 200 {
		t.Errorf("%d lines of strings.js are understood, of %d", len(chinese), lines)
	}
	unused := maps.Clone(chinese)
	for name, text := range scripts() {
		for _, m := range translated.FindAllStringSubmatch(text, -1) {
			key := m[1] + m[2]
			delete(unused, key)
			if chinese[key] == "" {
				t.Errorf("%s: strings.js does not have %q", name, key)
			}
		}
	}
	for key := range unused {
		t.Errorf("no script has the text %q of strings.js", key)
	}
	for english, text := range chinese {
		one, _, _ := strings.Cut(english, "|")
		want, got := hole.FindAllString(one, -1), hole.FindAllString(text, -1)
		slices.Sort(want)
		slices.Sort(got)
		if !slices.Equal(want, got) {
			t.Errorf("%q has %v in Chinese, want %v", english, got, want)
		}
	}
}

// A literal that a reader could see is an argument of t or tn: one that begins with a capital letter, or has several words.
// The browser test sees what this one cannot.
func TestNoTextBypassesTheTable(t *testing.T) {
	comments := regexp.MustCompile(`(?m)//.*$|/\*[^*]*\*/`)
	literal := regexp.MustCompile("'((?:\\\\.|[^'\\\\\n])*)'|`([^`]*)`|>([^<>\n]*[A-Za-z]{2}[^<>\n]*)<")
	visible := regexp.MustCompile(`^\W*[A-Z][a-z]+\b|[a-z]{2,}[.,:;]? (?:[a-z]+ )*[a-z]{2,}`)
	filled := regexp.MustCompile(`\$\{[^$]*(?:\}|$)`)
	joint := regexp.MustCompile("[`}][,:;] \\$\\{|join\\('[,:;] '\\)") // half-width between texts; a setting is as in its file
	fixed := []string{                                                 // names of the platform, of products, classes, selectors, and what the daemon reads
		"Bearer ", "Authorization", "Content-Type", "Accept", "Home", "End", "ArrowRight", "ArrowLeft", "Escape", "Files", "Tab",
		"PostgreSQL", "MySQL", "SQLite", "Redis", "GET", "mark mark-", "decision decision-", "legend-item ", "pointer pointer-", "shard shard-", "view view-",
		"bar-fill ", "most exceeds", "banner ", "tag ", "(prefers-color-scheme: dark)", "application/", "use strict", "color-mix", "undo: ",
		"sliding", "fixed-window", "leaky-bucket", "Noto", "penalty ", "charge always", "concurrent", "request_id",
	}
	for name, text := range scripts() {
		if found := joint.FindString(strings.ReplaceAll(text, "${s.name}: ${s.text}", "")); found != "" {
			t.Errorf("%s joins texts by %q, which is not in the table", name, found)
		}
		text = regexp.MustCompile(`<noscript>.*</noscript>`).ReplaceAllString(text, "")
		text = translated.ReplaceAllString(comments.ReplaceAllString(text, ""), "")
		for _, m := range literal.FindAllStringSubmatch(text, -1) {
			found := filled.ReplaceAllString(m[1]+m[2]+m[3], "")
			if m[3] != "" && path.Ext(name) != ".html" || !visible.MatchString(found) {
				continue
			}
			if !slices.ContainsFunc(fixed, func(part string) bool { return strings.Contains(found, part) }) {
				t.Errorf("%s: %q is not in the table", name, found)
			}
		}
	}
}

func get(t *testing.T, target string, header http.Header) *http.Response {
	t.Helper()
	r := httptest.NewRequest(http.MethodGet, target, http.NoBody)
	r.Header = header
	w := httptest.NewRecorder()
	if !Serve(w, r) {
		w.WriteHeader(http.StatusNotFound)
	}
	return w.Result()
}

func TestServeAnswersWithHeaders(t *testing.T) {
	for target, contentType := range map[string]string{
		"/": "text/html; charset=utf-8", "/page/app.js": "text/javascript; charset=utf-8",
		"/page/style.css": "text/css; charset=utf-8", "/page/icon.png": "image/png", "/page/vendor/LICENSE": "text/plain; charset=utf-8",
	} {
		response := get(t, target, http.Header{})
		for name, want := range map[string]string{
			"Content-Type": contentType, "Content-Security-Policy": contentSecurityPolicy,
			"Cross-Origin-Opener-Policy": "same-origin", "Cross-Origin-Resource-Policy": "same-origin",
			"Referrer-Policy": "no-referrer", "X-Content-Type-Options": "nosniff", "Set-Cookie": "",
		} {
			if got := response.Header.Get(name); response.StatusCode != http.StatusOK || got != want {
				t.Errorf("%s: %d, %s %q, want %q", target, response.StatusCode, name, got, want)
			}
		}
	}
	for _, target := range []string{"/page/", "/page/none.js", "/page/../page.go", "/page/vendor"} {
		if response := get(t, target, http.Header{}); response.StatusCode != http.StatusNotFound {
			t.Errorf("%s: %d, want 404", target, response.StatusCode)
		}
	}
}

func TestServeCompressesAndRevalidates(t *testing.T) {
	plain := get(t, "/page/app.js", http.Header{})
	want, err := io.ReadAll(plain.Body)
	if err != nil {
		t.Fatal(err)
	}
	compressed := get(t, "/page/app.js", http.Header{"Accept-Encoding": {"gzip, br"}})
	z, err := gzip.NewReader(compressed.Body)
	if err != nil {
		t.Fatal(err)
	}
	got, err := io.ReadAll(z)
	if err != nil || !bytes.Equal(got, want) || !strings.Contains(compressed.Header.Get("Vary"), "Accept-Encoding") {
		t.Errorf("compressed: %d bytes (%v), want %d", len(got), err, len(want))
	}
	again := get(t, "/page/app.js", http.Header{"If-None-Match": {plain.Header.Get("ETag")}, "Accept-Encoding": {"gzip"}})
	if body, err := io.ReadAll(again.Body); again.StatusCode != http.StatusNotModified || len(body) != 0 || err != nil {
		t.Errorf("unchanged: %d with %d bytes, want 304 and none", again.StatusCode, len(body))
	}
}
