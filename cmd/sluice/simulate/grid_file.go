package simulate

import "time"

// gridFile is a file that describes a plan.
type gridFile struct {
	// Seeds is how many runs there are of each scenario and candidate.
	Seeds int `yaml:"seeds" range:"1..1000"`
	// Defaults hold for scenarios that say nothing else.
	Defaults scenarioEntry `yaml:"defaults"`
	// Scenarios are what candidates are compared in.
	Scenarios []scenarioEntry `yaml:"scenarios"`
	// Candidates are those that are compared.
	Candidates []candidateEntry `yaml:"candidates"`
}

// scenarioEntry is one or, where it has lists of several, a product of scenarios. What is absent is as in the defaults.
type scenarioEntry struct {
	Name       *string         `yaml:"name"`
	Trace      *string         `yaml:"trace"` // relative to the grid file
	B2B        *b2bEntry       `yaml:"b2b"`
	Rate       []float64       `yaml:"rate"` // requests per second, of b2b
	Speed      []float64       `yaml:"speed"`
	Capacity   *float64        `yaml:"capacity"` // the speed, or b2b's rate, that counts as full load
	Load       []float64       `yaml:"load"`     // shares of the capacity
	From       *float64        `yaml:"from"`
	To         *float64        `yaml:"to"`
	Jitter     *time.Duration  `yaml:"jitter"`
	Endpoints  []int           `yaml:"endpoints"`
	KVTokens   []int           `yaml:"kvTokens"`
	Profile    *string         `yaml:"profile"` // as sluice fit writes it, relative to the grid file
	Engines    []engineEntry   `yaml:"engines"`
	Shifts     []shiftEntry    `yaml:"shifts"`
	Replicas   *int            `yaml:"replicas"`
	EventDelay []time.Duration `yaml:"eventDelay"`
	EventLoss  *float64        `yaml:"eventLoss"`
	Scrape     *time.Duration  `yaml:"scrapeInterval"`
	WarmUp     *float64        `yaml:"warmUp"`
	SLOTTFT    *time.Duration  `yaml:"sloTTFT"`
	SLOTPOT    *time.Duration  `yaml:"sloTPOT"`
}

// b2bEntry is the synthetic workload; see trace.B2B.
type b2bEntry struct {
	Customers        *int `yaml:"customers"`
	UsersPerCustomer *int `yaml:"usersPerCustomer"`
	SystemTokens     *int `yaml:"systemTokens"`
	QuestionTokens   *int `yaml:"questionTokens"`
	AnswerTokens     *int `yaml:"answerTokens"`
	Requests         *int `yaml:"requests"`
	FreshQuestions   bool `yaml:"freshQuestions"` // every request asks something new
}

// engineEntry is an endpoint that differs from the others.
type engineEntry struct {
	Endpoint int      `yaml:"endpoint"` // from 0
	KVTokens *int     `yaml:"kvTokens"`
	Slower   *float64 `yaml:"slower"`
}

// shiftEntry is a change in the middle of the run.
type shiftEntry struct {
	At      float64       `yaml:"at"` // share of the span
	Slower  *slowerEntry  `yaml:"slower"`
	Prompts *promptsEntry `yaml:"prompts"`
	Burst   *burstEntry   `yaml:"burst"`
}

// slowerEntry makes an endpoint slower.
type slowerEntry struct {
	Endpoint int     `yaml:"endpoint"` // from 0
	Factor   float64 `yaml:"factor"`
}

// promptsEntry makes prompts longer or shorter.
type promptsEntry struct {
	Mean int      `yaml:"mean"`
	Most *int     `yaml:"most"`
	Rate *float64 `yaml:"rate"` // by what the rate of requests changes
}

// burstEntry makes a prefix hot for a while.
type burstEntry struct {
	For    *float64 `yaml:"for"` // share of the span
	Share  *float64 `yaml:"share"`
	Tokens *int     `yaml:"tokens"`
}

// shift is what an entry says.
func (e *shiftEntry) shift() Shift {
	s := Shift{At: e.At}
	if e.Slower != nil {
		s.Slower = Slower{Engine: e.Slower.Endpoint, Factor: e.Slower.Factor}
	}
	if e.Prompts != nil {
		s.Prompts = Prompts{Mean: e.Prompts.Mean, Most: or(e.Prompts.Most, defaultMost), Rate: or(e.Prompts.Rate, 1)}
	}
	if e.Burst != nil {
		s.Burst = Burst{For: or(e.Burst.For, defaultFor), Share: or(e.Burst.Share, defaultShare), Tokens: or(e.Burst.Tokens, defaultHot)}
	}
	return s
}

// candidateEntry is a configuration: a file, the text of one, or neither for the built-in one, with changes; or a policy.
type candidateEntry struct {
	Name      string             `yaml:"name"`
	Policy    string             `yaml:"policy"` // as policies.Parse reads it
	Tuned     bool               `yaml:"tuned"`  // with all settings that somebody would try who tunes it
	Config    string             `yaml:"config"` // relative to the grid file
	Text      string             `yaml:"text"`
	Set       map[string]any     `yaml:"set"`
	Weights   map[string]float64 `yaml:"weights"`
	Scenarios []string           `yaml:"scenarios"`
}
