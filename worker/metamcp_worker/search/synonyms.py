"""Words of the trade that stand for each other: who asks for a picture wants the tool for images.

Owns: the table, and the terms for which a term stands. Never: how much such a term weighs
(`search.index`).

Each line of the table is a group: a query with one of its words also looks for the others. In a
line with a colon, a query with one of the words before it also looks for those behind it. A word
may be in several lines. The words are those of everyday speech beside those of tools: files,
versions, issues, messages, calendars, the web, data, machines.
"""

import functools
from collections.abc import Mapping, Sequence

from metamcp_worker.search import words

_GROUPS = """
folder directory
location place: path
picture image photo graphic screenshot icon
document file doc text
contents content inside
subfolder subdirectory nested recursive tree hierarchy
rename move relocate transfer
copy duplicate clone replicate
delete remove erase drop discard trash unlink clear purge
create make new build generate produce start open
add append insert attach include put
change edit modify update alter revise adjust replace rewrite set
fix repair correct patch resolve
write save store record keep persist
read view show display look see print cat get
open read view load
list enumerate show overview all every
find search locate lookup look seek hunt
query search ask
get fetch retrieve obtain download pull grab load receive
download fetch retrieve pull
upload send push transfer
send post deliver submit mail dispatch
compare diff difference contrast versus changed
difference diff delta change
merge combine join unite
join combine concatenate
split divide separate
undo revert reset rollback restore discard
restore recover reset
history log commit past earlier previous timeline
log history journal record
version revision commit release tag
branch line fork
switch checkout change
save commit
stage add index
staged cached
repository repo codebase
project: repository
code source program
script: code
commit save checkin snapshot
author writer who blame
who author user assignee owner blame
message comment note remark text
comment remark note reply annotation feedback
note memo observation remark memory
remember store memory save note keep memorize
forget delete remove
recall search read open memory retrieve
memory knowledge graph
person entity contact user people
connection relation relationship link edge
connect relate relation link
relationship relation connection tie
fact observation note
thing entity object node item
node entity
link url address uri reference
website web page site url
page web url html
webpage page url fetch
internet web online url
browse navigate open visit browser
click press tap
screen display page
screenshot capture snapshot picture
scrape fetch extract crawl
extract parse pull get
time clock hour now current date
clock time
hour time
timezone zone time local
now current today
today current date
current now present active
date day time
when time date schedule
convert translate transform change turn
translate convert language
meeting event appointment calendar
appointment event meeting
calendar schedule event agenda
schedule plan calendar book
book reserve schedule create
reminder task alarm notification
task todo issue ticket job
todo task
ticket issue task bug
bug issue defect error problem
problem issue error bug
error failure exception fault
report issue create summary
pull merge request
review approve comment
assign give delegate set
close finish resolve complete end
finish complete close done
start begin run launch open
run execute start launch invoke
execute run
launch start run
stop end halt kill cancel terminate
cancel abort stop
pause suspend stop wait
wait sleep delay pause long
restart reboot reload
build compile pipeline workflow
pipeline workflow build run ci
test check verify
check verify validate test inspect status
verify validate check
status state condition progress health
state status
progress status
size length big large bytes
big large size
small tiny
largest size sort biggest
count number total sum how many
many count number
sum add total plus calculate
plus add sum
calculate compute sum math add
math calculate sum arithmetic
number figure value
average mean
sort order rank
filter select where
select pick choose query
permission access right allow
access permission allowed
allowed permission permitted
share publish invite
publish release deploy
deploy release ship publish
release version publish
notify alert inform message
alert notify warning
mail email message letter
email mail message
inbox mail email
letter mail message
chat message channel conversation
channel room chat
reply answer respond
answer reply respond
customer client account contact
account user profile
user account person member
member user participant
team group
group team
login signin authenticate
password secret credential
secret password token key
key token secret
money payment price cost amount
payment charge pay invoice
pay payment charge
refund return money
invoice bill
bill invoice
price cost quote
stock share quote market
order purchase buy
buy purchase order
weather forecast temperature
forecast weather
map route direction location
route direction
place location
near nearby around
database table sql
table sheet database
spreadsheet sheet table excel workbook
row record entry line
record row entry
entry record item row
column field
field column attribute property
schema structure columns
structure schema tree layout
info information detail metadata describe
information info detail
detail info describe
metadata info properties attribute
describe explain detail
explain describe
summary summarize overview
summarize summary
music song track audio playlist
song track music
audio sound music
sound audio
video movie film
movie film video
film movie video
container docker pod
server machine host instance
machine server host instance computer
cluster kubernetes
environment variable env setting
setting config configuration option preference
config configuration setting
configuration config setting
option setting
backup snapshot copy
snapshot backup
archive compress zip
compress zip archive gzip
zip compress archive gzip
unzip extract decompress
think reason reflect plan step
plan think step
step stage phase
reason think
idea thought
thought think thinking
echo repeat back
repeat echo again
parrot echo repeat
say echo tell speak
beginning head first start top
first head top
last tail end recent
recent latest last new
latest recent newest last
end tail
multiple several many
several multiple
together multiple batch
both multiple
pattern glob match wildcard regex
match pattern
extension suffix: type format
kind: type
name title label
title name subject
label tag
tag label
category label
example sample demo
sample example
annotated annotation
toggle switch turn enable disable
enable activate turn on
disable deactivate off
subscribe follow watch
follow subscribe watch
watch monitor observe follow
monitor watch observe
log output
output result print
result output
trigger start run
txt md doc docx odt pdf rtf: file document text
csv xlsx xls ods: file spreadsheet table
json yaml yml toml xml ini conf log py js ts html css sql: file
png jpg jpeg gif svg webp bmp tiff heic: image picture file media
mp3 wav ogg flac m4a: audio media file
mp4 mov avi mkv webm: video media file
zip tar gz rar: archive file
hear listen: audio media
watch: video media
jpgs pngs pdfs files: file search
megabyte kilobyte gigabyte mb gb kb space heavy: size info
disk drive harddisk storage: file directory size
desktop downloads home: directory folder
touched: modified info
typo spelling: edit replace
swap substitute exchange: replace edit
fresh blank: new create
outline overview: tree structure
nested: tree
dig: search find
hiding hidden lost: search find
behind: link url
says say: read get content
top first beginning: head
rows lines: text line
allowed may permitted: allowed access
pr: pull request
prs: pull request
repo: repository
checkin: commit
check: commit status
committed uncommitted: commit status
edits edited: change modify diff
forgot forget: status
drifted differs apart: diff compare
against versus vs between: compare diff
wrote authored: blame author
used usage uses called: search reference
green passed failed failing ci: workflow run status check
colleague: review
submit: create
bring: merge get
separate: branch
back: checkout switch restore
undo: reset revert
recently since lately ago: log history
history: log
google bing duckduckgo: search web
website site online homepage: web page url
slack teams discord: message channel
thumb emoji like: reaction
lunch: message
mailed mails wrote written: email
landlord boss colleague friend customer accountant: person entity contact
invoice receipt: document file
calendar diary: event
standup meeting review call appointment interview dinner party: event calendar
monday tuesday wednesday thursday friday saturday sunday week weekend tomorrow: event date time
free available together: free time slot
off: cancel delete
rain snow sun sunny storm hurricane wind cold hot umbrella: weather forecast alert
smog pollution: air quality
high altitude: elevation height
drive walk bus train bike airport: direction route
trading shares nasdaq: stock price
profit revenue earning: financial company income
study studies paper research journal: paper search article
graph plot bar pie: chart
spin: run create start
docker: container
kubernetes k8s: pod cluster deployment
healthy alive up: status health
copies replicas instances: scale
dark bright lamp light: light turn on
warm warmer cold colder freezing heating temperature: thermostat temperature set
dictation interview: transcribe
mp3: transcribe
german french spanish italian english chinese japanese: translate language
late: time current
clock: time current
am pm: time convert
tokyo london york sydney berlin paris california: time timezone city
boss married brother sister works employs knows lives: relation entity
mind note remember: add create memory entity observation
everything: all graph
unlink left: delete relation
wrong: delete edit
know known: search entity node
carefully: think thinking
after: echo repeat
together plus minus times: sum add
ordered bought sold customer customers orders: query select database
mark paid: update execute
slow long performance: explain query analyze
fields columns: describe table schema
signup form box: fill form input
javascript console warning: console message
subpages whole entire: crawl site all
"""


@functools.cache
def _table() -> Mapping[str, Sequence[str]]:
    groups: dict[str, dict[str, None]] = {}
    for line in _GROUPS.splitlines():
        query_words, _, meant = line.partition(":")
        terms = _whole(meant or query_words)
        for term in _whole(query_words):
            groups.setdefault(term, {}).update(dict.fromkeys(terms))
    return {
        term: [synonym for synonym in group if synonym != term] for term, group in groups.items()
    }


def _whole(text: str) -> list[str]:
    """Return one term for each word, also for one of several pieces (`mp3`)."""
    return [terms[-1] for word in text.split() if (terms := words.terms(word))]


def synonyms(term: str) -> Sequence[str]:
    """Return the terms that stand for the same as `term`, a term of `words.terms`."""
    return _table().get(term, ())
