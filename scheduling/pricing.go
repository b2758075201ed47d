package scheduling

// The prices where nobody measures: α for a pool that is busy half of the time, κ for prefill that stops decodes altogether at
// DefaultDecodePrice.
const (
	DefaultAlpha = 1.0
	DefaultKappa = 0.1
)

// DefaultDecodePrice is what a ms that an answer takes longer counts, in ms to a first token.
const DefaultDecodePrice = 0.1

// PriceKnobs are what a configuration gives in place of what is learnt; nil leaves it to learning.
type PriceKnobs struct {
	// Alpha and Kappa are those of PickPrice.
	Alpha, Kappa *float64
	// DecodePrice is what a ms that an answer takes longer counts, in ms to a first token.
	DecodePrice float64
	// PrefillThroughput is how many uncached prompt tokens each endpoint prefills in a second.
	PrefillThroughput *float64
}

// Pricing reads in a cycle what picks cost. ConsumePricing makes one.
type Pricing struct {
	rates    Key[LearntRates]
	pressure ValueKey[PoolPressure]
	knobs    PriceKnobs
}

// ConsumePricing declares that a plugin needs what has been learnt; the parameters are those of ConsumeColumn.
func ConsumePricing(b *Builder, param, producer string, knobs PriceKnobs) Pricing {
	return Pricing{
		rates:    ConsumeColumn[LearntRates](b, param, producer),
		pressure: ConsumeValue[PoolPressure](b, param, producer),
		knobs:    knobs,
	}
}

// In is what picks cost in a cycle, with the knobs applied.
func (p *Pricing) In(c *Cycle) (PickPrice, EndpointRates) {
	price := PickPrice{Alpha: DefaultAlpha, Kappa: DefaultKappa}
	if pressure, ok := p.pressure.In(c).Get(); ok {
		price = PickPrice{
			Alpha:     pressure.Alpha(),
			Kappa:     p.knobs.DecodePrice * pressure.DecodeStall,
			CompanyMs: p.knobs.DecodePrice * pressure.CompanyMs,
		}
	}
	if p.knobs.Alpha != nil {
		price.Alpha = *p.knobs.Alpha
	}
	if p.knobs.Kappa != nil {
		price.Kappa = *p.knobs.Kappa
	}
	rates := EndpointRates{fixed: FixedRates(DefaultPrefillThroughput)}
	if p.knobs.PrefillThroughput != nil {
		rates.fixed = FixedRates(*p.knobs.PrefillThroughput)
	} else {
		rates.learnt = p.rates.In(c)
	}
	return price, rates
}

// EndpointRates are the rates of a cycle's endpoints.
type EndpointRates struct {
	learnt *Column[LearntRates]
	fixed  LearntRates
}

// Of is an endpoint's rates: what has been learnt, or else the constants.
func (e EndpointRates) Of(ordinal int) LearntRates {
	if r := e.learnt.At(ordinal); r != nil {
		return *r
	}
	return e.fixed
}
