BUILD = f"report/build/{NAME}"


localrules:
    summarise,
    figures,
    typeset,
    summarise_partial,
    figures_partial,
    typeset_partial,


rule summarise:
    input:
        # The directory: that a result was deleted shows only in its mtime.
        directory=RESULTS_DIR,
        results=RESULTS,
        script=f"{workflow.basedir}/scripts/summarise.py",
        code=library("report", "stats"),
    output:
        f"{BUILD}/requests.csv",
        f"{BUILD}/cells.csv",
        summary=f"{BUILD}/summary.json",
    log:
        f"logs/summarise/{NAME}/complete.log",
    params:
        specs=SPECS,
        options="",
        out=BUILD,
    shell:
        "exec {PYTHON} {input.script} --campaign-json {TOKENS}/campaign.json --specs-json {TOKENS}/specs.json"
        " --results {input.directory} --out {params.out} {params.options} >{log} 2>&1"


rule figures:
    input:
        summary=rules.summarise.output.summary,
        script=f"{workflow.basedir}/scripts/figures.py",
        code=library("report"),
    output:
        f"{BUILD}/figures/figures.json",
    log:
        f"logs/figures/{NAME}/complete.log",
    shell:
        'exec {PYTHON} {input.script} --summary "$(dirname {input.summary})" --out "$(dirname {output})"'
        " >{log} 2>&1"


rule typeset:
    input:
        summary=rules.summarise.output.summary,
        figures=rules.figures.output,
        script=f"{workflow.basedir}/scripts/typeset.py",
        code=library("report"),
        templates=report_templates(),
    output:
        "report/bench.pdf",
    log:
        f"logs/typeset/{NAME}/complete.log",
        tex=f"logs/typeset/{NAME}/complete.tex.log",
    params:
        campaign=NAME,
    shell:
        'exec {PYTHON} {input.script} --summary "$(dirname {input.summary})"'
        ' --figures "$(dirname {input.figures})" --templates {TEMPLATES} --out {output} --log {log.tex}'
        " >{log[0]} 2>&1"


# The same three for a campaign that is not finished. Results are no inputs here, or they would be measured.
use rule summarise as summarise_partial with:
    input:
        directory=RESULTS_DIR,
        script=f"{workflow.basedir}/scripts/summarise.py",
        code=library("report", "stats"),
    output:
        f"{BUILD}/partial/requests.csv",
        f"{BUILD}/partial/cells.csv",
        summary=f"{BUILD}/partial/summary.json",
    log:
        f"logs/summarise/{NAME}/partial.log",
    params:
        specs=SPECS,
        options="--partial",
        out=f"{BUILD}/partial",


use rule figures as figures_partial with:
    input:
        summary=rules.summarise_partial.output.summary,
        script=f"{workflow.basedir}/scripts/figures.py",
        code=library("report"),
    output:
        f"{BUILD}/partial/figures/figures.json",
    log:
        f"logs/figures/{NAME}/partial.log",


use rule typeset as typeset_partial with:
    input:
        summary=rules.summarise_partial.output.summary,
        figures=rules.figures_partial.output,
        script=f"{workflow.basedir}/scripts/typeset.py",
        code=library("report"),
        templates=report_templates(),
    output:
        "report/partial.pdf",
    log:
        f"logs/typeset/{NAME}/partial.log",
        tex=f"logs/typeset/{NAME}/partial.tex.log",
