// Package page is the web page of the admin listener. It consists of static files
// without data: the page's scripts ask the admin API for all that they show, as any
// other client does.
package page

import (
	"bytes"
	"compress/gzip"
	"crypto/sha256"
	"embed"
	"encoding/hex"
	"io/fs"
	"net/http"
	"path"
	"strings"
	"sync"
	"time"
)

//go:embed static
var embedded embed.FS

const root = "static"

// Prefix is where the files of the page are served. The page itself is at "/".
const Prefix = "/page/"

// contentSecurityPolicy forbids all that the page does not need. Keys are chosen by
// remote callers and are shown by it: with Trusted Types and no policy, a script that
// wrote one as HTML would fail instead of running it.
const contentSecurityPolicy = "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; " +
	"connect-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'; " +
	"require-trusted-types-for 'script'; trusted-types 'none'"

// Wanted reports whether a request for "/" comes from a browser, and not from a
// program that wants text.
func Wanted(r *http.Request) bool {
	return strings.Contains(strings.Join(r.Header.Values("Accept"), ","), "text/html")
}

// Serve answers a request for "/" or a path below [Prefix], and reports whether there is
// such a file. The request's method must be GET or HEAD.
func Serve(w http.ResponseWriter, r *http.Request) bool {
	name := "index.html"
	if r.URL.Path != "/" {
		name = strings.TrimPrefix(r.URL.Path, Prefix)
	}
	f := files()[name]
	if f == nil {
		return false
	}
	f.serve(w, r)
	return true
}

// A file is a part of the page.
type file struct {
	contentType string
	etag        string
	text        []byte
	compressed  []byte
}

// files returns all files by their names.
var files = sync.OnceValue(func() map[string]*file {
	all := map[string]*file{}
	// Embedded files can be read, so there is no error.
	_ = fs.WalkDir(embedded, root, func(name string, d fs.DirEntry, err error) error {
		if err != nil || d.IsDir() {
			return err
		}
		text, err := embedded.ReadFile(name)
		name = strings.TrimPrefix(name, root+"/")
		all[name] = newFile(name, text)
		return err
	})
	return all
})

// contentTypes are those of the page's files. The machine's own table is not asked,
// because browsers refuse scripts of another type.
var contentTypes = map[string]string{
	".html": "text/html; charset=utf-8",
	".css":  "text/css; charset=utf-8",
	".js":   "text/javascript; charset=utf-8",
	".png":  "image/png",
	"":      "text/plain; charset=utf-8",
}

func newFile(name string, text []byte) *file {
	sum := sha256.Sum256(text)
	return &file{
		contentType: contentTypes[path.Ext(name)],
		etag:        `W/"` + hex.EncodeToString(sum[:8]) + `"`,
		text:        text,
		compressed:  compress(text),
	}
}

func compress(text []byte) []byte {
	var b bytes.Buffer
	z := gzip.NewWriter(&b)
	_, _ = z.Write(text) // a buffer accepts all
	_ = z.Close()
	return b.Bytes()
}

func (f *file) serve(w http.ResponseWriter, r *http.Request) {
	h := w.Header()
	h.Set("Content-Type", f.contentType)
	h.Set("Content-Security-Policy", contentSecurityPolicy)
	h.Set("Cross-Origin-Opener-Policy", "same-origin")
	h.Set("Cross-Origin-Resource-Policy", "same-origin")
	h.Set("Referrer-Policy", "no-referrer")
	h.Set("X-Content-Type-Options", "nosniff")
	h.Set("Cache-Control", "no-cache") // a restarted daemon may have another page
	h.Set("Vary", "Accept, Accept-Encoding")
	h.Set("ETag", f.etag)
	text := f.text
	if strings.Contains(r.Header.Get("Accept-Encoding"), "gzip") {
		h.Set("Content-Encoding", "gzip")
		text = f.compressed
	}
	http.ServeContent(w, r, "", time.Time{}, bytes.NewReader(text))
}
