package adminapi

import (
	"encoding/csv"
	"errors"
	"fmt"
	"io"
	"mime"
	"net/http"
	"slices"
	"strings"
	"time"

	"github.com/penstock-io/penstock/server/overrides"
)

// An Override is how /v1/overrides lists one.
type Override struct {
	Rule     string    `json:"rule"`
	Key      string    `json:"key"`
	Limit    string    `json:"limit"` // a limit, "unlimited" or "ban"
	Until    time.Time `json:"until,omitzero"`
	Reason   string    `json:"reason,omitempty"`
	Strikes  int       `json:"strikes,omitempty"` // bans in a row, if a penalty set it
	LastUsed time.Time `json:"last_used,omitzero"`
}

// The responses of /v1/overrides.
type (
	overridesResponse struct {
		Overrides []Override `json:"overrides"`
		Total     int        `json:"total"`   // how many there are of those that were asked for
		Durable   bool       `json:"durable"` // whether they outlast the process
		Actions   bool       `json:"actions"` // whether they can be changed here
	}

	overridesChanged struct {
		Set     int    `json:"set,omitempty"`
		Deleted int    `json:"deleted,omitempty"`
		Durable bool   `json:"durable"`
		Note    string `json:"note,omitempty"`
	}
)

func newOverride(o overrides.Listed) Override {
	return Override{o.Rule, o.Key, o.Limit, o.Until, o.Reason, o.Strikes, o.Used}
}

// An overrideRequest is an override as operators write it.
type overrideRequest struct {
	Rule   string `json:"rule"`
	Key    string `json:"key"`
	Limit  string `json:"limit"`
	Until  string `json:"until"`
	For    string `json:"for"`
	Reason string `json:"reason"`

	// What a list has besides, so that it can be sent back. It has no effect.
	Strikes  int    `json:"strikes"`
	LastUsed string `json:"last_used"`
}

// end returns when the override ends; the zero time is never.
func (q *overrideRequest) end(now time.Time) (time.Time, error) {
	switch {
	case q.Until != "" && q.For != "":
		return time.Time{}, &parameterError{"until", "want until or for, not both"}
	case q.For != "":
		d, err := time.ParseDuration(q.For)
		if err != nil || d <= 0 {
			return time.Time{}, &parameterError{"for", fmt.Sprintf("%.80q: want a duration such as 10m or 24h", q.For)}
		}
		return now.Add(d).UTC().Truncate(time.Millisecond), nil
	case q.Until == "":
		return time.Time{}, nil
	}
	until, err := time.Parse(time.RFC3339, q.Until)
	switch {
	case err != nil:
		return until, &parameterError{"until", fmt.Sprintf("%.80q: want a time such as 2026-03-04T12:00:00Z", q.Until)}
	case !until.After(now):
		return until, &parameterError{"until", q.Until + " has passed"}
	}
	return until.UTC().Truncate(time.Millisecond), nil
}

// maxOverridesBody bounds the body of a PUT: some kilobytes for each override.
const maxOverridesBody = 16 << 20

// decodeOverrides reads the body of a PUT: one override in JSON, a list of them under
// "overrides", or a table in CSV.
func decodeOverrides(w http.ResponseWriter, r *http.Request) (all []overrideRequest, err error) {
	body := http.MaxBytesReader(w, r.Body, maxOverridesBody)
	kind, _, _ := mime.ParseMediaType(r.Header.Get("Content-Type"))
	if kind == "text/csv" {
		all, err = decodeOverridesCSV(body)
	} else {
		all, err = decodeOverridesJSON(body)
	}
	switch {
	case err != nil:
		return nil, asParameterError(err)
	case len(all) == 0:
		return nil, &parameterError{"", "want at least one override"}
	case len(all) > maxOverridesAtOnce:
		return nil, &parameterError{"", fmt.Sprintf("%d overrides: want at most %d in one request", len(all), maxOverridesAtOnce)}
	}
	return all, nil
}

func decodeOverridesJSON(body io.Reader) ([]overrideRequest, error) {
	var list struct {
		Overrides *[]overrideRequest `json:"overrides"`
		Total     int                `json:"total"` // what a list has besides
		Durable   bool               `json:"durable"`
		Actions   bool               `json:"actions"`
		overrideRequest
	}
	const example = `{"rule": "shop/user", "key": "42", "limit": "600/1m"}, or a list of them in {"overrides": [...]}`
	if err := decodeJSON(body, &list, example); err != nil {
		return nil, err
	}
	switch {
	case list.Overrides == nil:
		return []overrideRequest{list.overrideRequest}, nil
	case list.overrideRequest != overrideRequest{}:
		return nil, errors.New("want one override, or a list of overrides, not both")
	}
	return *list.Overrides, nil
}

// columns are the columns of a table, in the order of an export.
var columns = []string{"rule", "key", "limit", "until", "reason", "strikes", "last_used"}

// field returns the field of a column, or nil if it has no effect.
func (q *overrideRequest) field(column string) *string {
	return map[string]*string{
		"rule": &q.Rule, "key": &q.Key, "limit": &q.Limit, "until": &q.Until, "for": &q.For, "reason": &q.Reason,
	}[column]
}

func decodeOverridesCSV(body io.Reader) (all []overrideRequest, err error) {
	in := csv.NewReader(body)
	header, err := in.Read()
	if err != nil {
		return nil, fmt.Errorf("want a table in CSV with the columns %s: %w", strings.Join(columns, ", "), err)
	}
	if err := checkColumns(header); err != nil {
		return nil, err
	}
	for {
		row, err := in.Read()
		if errors.Is(err, io.EOF) {
			return all, nil
		}
		if err != nil {
			return nil, err
		}
		if len(all) > maxOverridesAtOnce {
			return all, nil
		}
		var q overrideRequest
		for i, name := range header {
			if field := q.field(name); field != nil {
				*field = strings.Clone(row[i])
			}
		}
		all = append(all, q)
	}
}

func checkColumns(header []string) error {
	for i, name := range header {
		if slices.Index(header, name) < i || name != "for" && !slices.Contains(columns, name) {
			return fmt.Errorf("column %d of the table: want each of %s, for at most once", i+1, strings.Join(columns, ", "))
		}
	}
	for _, name := range []string{"rule", "key", "limit"} {
		if !slices.Contains(header, name) {
			return fmt.Errorf("the table has no column %s", name)
		}
	}
	return nil
}

func writeOverridesCSV(w http.ResponseWriter, all []overrides.Listed) error {
	w.Header().Set("Content-Type", "text/csv; charset=utf-8")
	out := csv.NewWriter(w)
	_ = out.Write(columns) // an error means that the client has disconnected
	for i := range all {
		o := newOverride(all[i])
		row := []string{o.Rule, o.Key, o.Limit, timeText(o.Until), o.Reason, "", timeText(o.LastUsed)}
		if o.Strikes > 0 {
			row[5] = fmt.Sprint(o.Strikes)
		}
		_ = out.Write(row)
	}
	out.Flush()
	return nil
}

func timeText(t time.Time) string {
	if t.IsZero() {
		return ""
	}
	return t.Format(time.RFC3339Nano)
}
